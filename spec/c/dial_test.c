/*
 * Dialling for a transport that is not Redis': frames with a length of four
 * bytes.
 */
#include "dial.h"

#include <arpa/inet.h>

#include "record.h"

static char path[128];
static rl_dial *dialling;
static rl_stream stream;
static char failure[RL_DETAIL];

static void on_dialled(void *arg, const rl_stream *dialled, const char *why)
{
    (void)arg;
    if (dialled != NULL)
        stream = *dialled;
    else
        snprintf(failure, sizeof(failure), "%s", why);
    rl_dial_close(dialling);
    rl_loop_stop(loop);
}

static void begin(void)
{
    rl_dial_options options = { .path = path,
                                .timeout = 5000,
                                .fn = on_dialled };
    char why[RL_DETAIL];

    open_loop();
    stream = (rl_stream){ .fd = -1 };
    failure[0] = '\0';
    CHECK(rl_dial_open(&dialling, loop, &options, why) == 0);
    CHECK(stream.fd < 0 && failure[0] == '\0');
    rl_loop_run(loop);
}

static void end(void)
{
    rl_stream_close(&stream);
    CHECK(stream.fd < 0);
    close_loop();
}

/* Reads until that many bytes have come, or an error. */
static ssize_t read_all(void *to, size_t size)
{
    double give_up = seconds() + 10 * slow();
    size_t used = 0;

    while (used < size && seconds() < give_up) {
        ssize_t n = rl_stream_read(&stream, (char *)to + used, size - used);

        if (n < 0)
            return n;
        if (n == 0)
            pause_ms(1);
        used += (size_t)n;
    }
    return (ssize_t)used;
}

/* Sends a frame back in two parts, and ends. */
static void talk_frames(int fd)
{
    char frame[4 + 5];
    size_t used = 0;

    while (used < sizeof(frame)) {
        ssize_t n = read(fd, frame + used, sizeof(frame) - used);

        if (n <= 0)
            _exit(1);
        used += (size_t)n;
    }
    if (write(fd, frame, 2) != 2 || write(fd, frame + 2, 7) != 7)
        _exit(1);
}

static void what_is_handed_over_carries_any_bytes(void)
{
    pid_t pid = start_fake(path, talk_frames);
    char out[9] = { 0, 0, 0, 5, 'h', 0, 'l', '\r', '\n' };
    char in[9];
    uint32_t length;
    ssize_t n;

    begin();
    CHECK(stream.fd >= 0 && stream.tls == NULL);
    CHECK(rl_stream_read(&stream, in, sizeof(in)) == 0);
    CHECK(rl_stream_write(&stream, out, sizeof(out)) == sizeof(out));
    CHECK(read_all(&length, 4) == 4);
    CHECK(ntohl(length) == 5);
    CHECK(read_all(in, 5) == 5);
    CHECK(memcmp(in, out + 4, 5) == 0);
    n = read_all(in, 1);
    CHECK(n == UV_EOF);
    CHECK(
        strcmp(rl_stream_error(&stream, (int)n), "server closed the connection")
        == 0);
    end();
    finish(pid);
}

static void a_failure_says_why(void)
{
    unlink(path);
    begin();
    CHECK(stream.fd < 0);
    CHECK(strcmp(failure, "no such file or directory") == 0);
    end();
}

int main(void)
{
    snprintf(path, sizeof(path), "%s", in_folder("fake"));
    RUN(what_is_handed_over_carries_any_bytes);
    RUN(a_failure_says_why);
    return check_end();
}
