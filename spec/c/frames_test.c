/*
 * Connections of frames, against a server that sends back what it gets, in
 * pieces of any size, and that misbehaves on demand.
 */
#include "frames.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "record.h"

enum { OPEN = 7, LOST = 1, FRAME = 2, LIMIT = 100000 };

static int port;
static pid_t server;
static rl_frames *frames;

/* ---- the server ---- */

/* Sends back what it gets, `piece` bytes at a time. A byte of X announces a
   frame that is too long, a byte of Q closes the connection. */
static void serve_one(int fd, size_t piece)
{
    char bytes[65536];
    ssize_t n;

    while ((n = read(fd, bytes, sizeof(bytes))) > 0) {
        size_t at, size = (size_t)n;

        if (memchr(bytes, 'Q', size) != NULL)
            return;
        if (memchr(bytes, 'X', size) != NULL)
            (void)!write(fd, "\377\377\377\377abc", 7);
        for (at = 0; at < size; at += piece) {
            size_t left = size - at < piece ? size - at : piece;

            if (write(fd, bytes + at, left) < 0)
                return;
        }
    }
}

static void serve(int listener)
{
    size_t piece;

    signal(SIGPIPE, SIG_IGN);
    for (piece = 1;; piece = piece * 3 + 1) {
        int fd = accept(listener, NULL, NULL);

        if (fd < 0)
            _exit(0);
        serve_one(fd, piece);
        close(fd);
    }
}

static void start_server(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET };
    socklen_t size = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
    CHECK(listen(fd, 8) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &size) == 0);
    port = ntohs(at.sin_port);
    server = fork();
    if (server == 0)
        serve(fd);
    close(fd);
}

/* ---- the loop ---- */

static rl_frames *open_at(int at, size_t limit)
{
    rl_frames_options options = {
        .to = { .host = "127.0.0.1", .port = at, .timeout = 5000 },
        .limit = limit,
        .lost = LOST,
        .frame = FRAME
    };
    char why[RL_DETAIL];
    rl_frames *self = NULL;

    CHECK(rl_frames_open(&self, loop, OPEN, &options, why) == 0);
    return self;
}

static void begin_with(size_t limit)
{
    open_loop();
    frames = open_at(port, limit);
    CHECK(rl_frames_pending(frames) == OPEN);
    CHECK(rl_frames_send(frames, "a", 1) == UV_ENOTCONN);
    wait_for("opened", 1);
    CHECK(rl_frames_pending(frames) == 0);
    record[0] = '\0';
}

static void begin(void)
{
    begin_with(LIMIT);
}

static void end(void)
{
    rl_frames_close(frames);
    close_loop();
}

/* ---- the tests ---- */

static void frames_arrive_whole_and_in_order(void)
{
    int round;

    for (round = 0; round < 4; round++) { /* in pieces of 1, 4, 13, 40 bytes */
        begin();
        CHECK(rl_frames_send(frames, "one", 3) == 0);
        CHECK(rl_frames_send(frames, "", 0) == 0);
        CHECK(rl_frames_send(frames, "two", 3) == 0);
        wait_for("2 frame", 3);
        CHECK(recorded("2 frame one\n2 frame\n2 frame two\n"));
        end();
    }
}

static void a_long_frame_arrives(void)
{
    static char bytes[LIMIT];

    begin();
    memset(bytes, 'b', sizeof(bytes));
    CHECK(rl_frames_send(frames, bytes, sizeof(bytes)) == 0);
    CHECK(rl_frames_send(frames, "after", 5) == 0);
    wait_for("2 frame after", 1);
    end();
}

static void without_a_limit_there_are_no_frames(void)
{
    begin_with(0);
    CHECK(rl_frames_send(frames, "xy", 2) == 0);
    CHECK(rl_frames_send(frames, "z", 1) == 0);
    wait_for("z", 1);
    CHECK(strchr(record, 'x') < strchr(record, 'y'));
    end();
}

static void our_address_is_known(void)
{
    char address[RL_ADDRESS];

    begin();
    CHECK(rl_frames_address(frames, address) == 0);
    CHECK(strcmp(address, "127.0.0.1") == 0);
    end();
}

static void a_frame_that_is_too_long_ends_the_connection(void)
{
    begin();
    CHECK(rl_frames_send(frames, "X", 1) == 0);
    wait_for("1 lost", 1);
    CHECK(strstr(rl_frames_detail(frames), "too long") != NULL);
    CHECK(rl_frames_send(frames, "a", 1) == UV_ENOTCONN);
    end();
}

static void an_end_is_reported_once(void)
{
    begin();
    CHECK(rl_frames_send(frames, "Q", 1) == 0);
    wait_for("1 lost", 1);
    CHECK(recorded("1 lost\n"));
    end();
}

static void nobody_listens(void)
{
    open_loop();
    frames = open_at(1, LIMIT);
    wait_for("failed connect", 1);
    CHECK(recorded("7 failed connect\n"));
    end();
}

static void close_now(const rl_event *event)
{
    if (event->what == RL_FRAME)
        rl_frames_close(frames);
}

static void the_sink_may_close_it(void)
{
    begin();
    on_event = close_now;
    CHECK(rl_frames_send(frames, "one", 3) == 0);
    CHECK(rl_frames_send(frames, "two", 3) == 0);
    wait_for("2 frame", 1);
    CHECK(recorded("2 frame one\n"));
    close_loop();
}

static void the_loop_drops_it(void)
{
    begin();
    close_loop();
}

int main(void)
{
    start_server();
    RUN(frames_arrive_whole_and_in_order);
    RUN(a_long_frame_arrives);
    RUN(without_a_limit_there_are_no_frames);
    RUN(our_address_is_known);
    RUN(a_frame_that_is_too_long_ends_the_connection);
    RUN(an_end_is_reported_once);
    RUN(nobody_listens);
    RUN(the_sink_may_close_it);
    RUN(the_loop_drops_it);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return check_end();
}
