/*
 * Connections: against a real redis-server, and against fake ones that stay
 * silent, send nonsense or close at the worst moment.
 */
#define _GNU_SOURCE /* RTLD_NEXT */

#include "conn.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>

#include "record.h"

enum { OPEN = 7, LOST = 1, MESSAGE = 2 };

static char real[128], fake[128];
static const char *strange; /* what a fake sends at the end */
static rl_conn *conn;

static rl_conn_options at(const char *path)
{
    rl_conn_options options = { .to = { .path = path, .timeout = 5000 },
                                .lost = LOST };

    return options;
}

static rl_conn *connect_with(const rl_conn_options *options)
{
    char why[RL_DETAIL];
    rl_conn *self = NULL;

    CHECK(rl_conn_open(&self, loop, OPEN, options, why) == 0);
    return self;
}

static int call(rl_conn *self, int64_t id, uint64_t ms, const char *first,
                const char *second)
{
    const char *argv[2] = { first, second };
    size_t length[2] = { strlen(first), second ? strlen(second) : 0 };

    return rl_conn_call(self, id, ms, second ? 2 : 1, argv, length);
}

static int listen_to(rl_conn *self, const char *verb, const char *channel)
{
    return rl_conn_listen(self, verb, channel, strlen(channel));
}

static void stop_at_id_9(const rl_event *event)
{
    if (event->id == 9)
        rl_loop_stop(loop);
}

static void stop_at_lost(const rl_event *event)
{
    if (event->what == RL_LOST)
        rl_loop_stop(loop);
}

/* Opens a connection, and checks that the loop has reported nothing else. */
static void begin(const rl_conn_options *options)
{
    open_loop();
    on_event = stop_at_lost;
    conn = connect_with(options);
    wait_for("\n", 1);
    CHECK(recorded("7 opened\n"));
    record[0] = '\0';
}

static void begin_at(const char *path)
{
    rl_conn_options options = at(path);

    begin(&options);
}

static void end(void)
{
    rl_conn_close(conn);
    conn = NULL;
    close_loop();
}

/* ---- commands ---- */

static void replies_come_in_order_with_their_ids(void)
{
    begin_at(real);
    on_event = stop_at_id_9;
    CHECK(call(conn, 3, 1000, "PING", NULL) == 0);
    CHECK(call(conn, 4, 0, "ECHO", "x") == 0);
    CHECK(call(conn, 5, 0, "NOSUCH", NULL) == 0);
    CHECK(call(conn, 6, 0, "GET", "nothing") == 0);
    CHECK(call(conn, 9, 0, "STRLEN", "nothing") == 0);
    CHECK(rl_conn_pending(conn) == 5);
    CHECK(recorded(""));
    rl_loop_run(loop);
    CHECK(rl_conn_pending(conn) == 0);
    CHECK(recorded("3 replied PONG\n4 replied x\n"
                   "5 replied ERR unknown command 'NOSUCH', with args "
                   "beginning with: \n"
                   "6 replied 0\n9 replied 0\n"));
    end();
}

static void talk_once(int fd)
{
    int reads = expect(fd, "nine");

    say(fd, "+1\r\n+2\r\n");
    say(fd, reads == 1 ? "+once\r\n" : "+more\r\n");
    expect(fd, "never");
}

static void a_turn_of_the_loop_is_one_write(void)
{
    pid_t pid = start_fake(fake, talk_once);

    begin_at(fake);
    on_event = stop_at_id_9;
    call(conn, 3, 0, "ECHO", "three");
    call(conn, 4, 0, "ECHO", "four");
    call(conn, 9, 0, "ECHO", "nine");
    rl_loop_run(loop);
    CHECK(recorded("3 replied 1\n4 replied 2\n9 replied once\n"));
    end();
    finish(pid);
}

static int said[2]; /* a pipe between test and fake */

static void talk_slowly(int fd)
{
    static char bytes[1 << 20];
    size_t total = 0;

    expect(said[0], "both are queued");
    while (total < 20000000) {
        ssize_t n = read(fd, bytes, sizeof(bytes));

        if (n <= 0)
            _exit(1);
        total += (size_t)n;
    }
    say(fd, "+big\r\n+small\r\n");
    pause_ms(10000);
}

static void more_than_the_socket_takes_is_sent_bit_by_bit(void)
{
    char *big = malloc(20000001);
    pid_t pid;

    CHECK(pipe(said) == 0);
    pid = start_fake(fake, talk_slowly);
    memset(big, 'x', 20000000);
    big[20000000] = '\0';
    begin_at(fake);
    on_event = stop_at_id_9;
    CHECK(call(conn, 3, 0, "ECHO", big) == 0);
    run_for(10);
    CHECK(call(conn, 9, 0, "ECHO", "small") == 0);
    say(said[1], "both are queued");
    rl_loop_run(loop);
    CHECK(recorded("3 replied big\n9 replied small\n"));
    end();
    finish(pid);
    close(said[0]);
    close(said[1]);
    free(big);
}

static void names_without_one_reply_are_refused(void)
{
    static const char *const names[] = {
        "subscribe",   "SUBSCRIBE",    "PSubscribe",   "ssubscribe",
        "unsubscribe", "PUNSUBSCRIBE", "sunsubscribe", "monitor",
        "pmonitor",    "sync",         "PSYNC"
    };
    size_t i;

    begin_at(real);
    on_event = stop_at_id_9;
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        CHECK(call(conn, 3, 0, names[i], "x") == UV_EINVAL);
    CHECK(call(conn, 3, 0, "Client", "REPLY") == UV_EINVAL);
    CHECK(call(conn, 3, 0, "client", "id") == 0);
    CHECK(call(conn, 3, 0, "", NULL) == 0);
    CHECK(call(conn, 4, 0, "s", NULL) == 0);
    CHECK(call(conn, 9, 0, "PING", NULL) == 0);
    rl_loop_run(loop);
    CHECK(strstr(record, "9 replied PONG\n") != NULL);
    end();
}

/* ---- deadlines ---- */

static void talk_late(int fd)
{
    expect(fd, "second");
    say(fd, "+late\r\n+in time\r\n");
    pause_ms(10000);
}

static void a_reply_after_its_deadline_is_dropped(void)
{
    pid_t pid = start_fake(fake, talk_late);

    begin_at(fake);
    on_event = stop_at_id_9;
    call(conn, 3, 30, "ECHO", "first");
    wait_for("\n", 1);
    CHECK(recorded("3 failed timeout\n"));
    call(conn, 9, 5000, "ECHO", "second");
    rl_loop_run(loop);
    CHECK(recorded("3 failed timeout\n9 replied in time\n"));
    end();
    finish(pid);
}

static void talk_not(int fd)
{
    (void)fd;
    pause_ms(10000);
}

static void a_short_deadline_after_a_long_one_is_kept(void)
{
    pid_t pid = start_fake(fake, talk_not);
    double started = seconds();

    begin_at(fake);
    on_event = stop_at_id_9;
    call(conn, 3, 60000, "PING", NULL);
    call(conn, 4, 10, "PING", NULL);
    call(conn, 9, 40, "PING", NULL);
    rl_loop_run(loop);
    CHECK(seconds() - started >= 0.040);
    CHECK(seconds() - started < 1 * slow());
    CHECK(recorded("4 failed timeout\n9 failed timeout\n"));
    CHECK(rl_conn_pending(conn) == 3);
    CHECK(rl_conn_pending_id(conn, 0) == 3);
    CHECK(rl_conn_pending_id(conn, 1) == 0);
    end();
    finish(pid);
}

static void close_at_timeout(const rl_event *event)
{
    if (event->code != NULL && strcmp(event->code, "timeout") == 0) {
        rl_conn_close(conn);
        conn = NULL;
    }
}

static void a_close_at_the_first_timeout_silences_the_others(void)
{
    pid_t pid = start_fake(fake, talk_not);

    begin_at(fake);
    on_event = close_at_timeout;
    call(conn, 3, 10, "PING", NULL);
    call(conn, 4, 10, "PING", NULL);
    rl_loop_run(loop);
    CHECK(recorded("3 failed timeout\n"));
    end();
    finish(pid);
}

static void talk_a_little(int fd)
{
    int i;

    expect(fd, "PING");
    for (i = 0; i < 20; i++) {
        pause_ms(20);
        say(fd, i == 0 ? "$1000\r\n" : "half a reply ");
    }
    pause_ms(10000);
}

static void a_silent_server_counts_as_gone(void)
{
    rl_conn_options options = at(fake);
    pid_t pid = start_fake(fake, talk_a_little);
    double started = seconds();

    options.silent = 300;
    begin(&options);
    run_for(400); /* nothing is in flight: it may be silent */
    CHECK(recorded(""));
    started = seconds();
    call(conn, 3, 5000, "PING", NULL);
    rl_loop_run(loop);
    CHECK(seconds() - started >= 0.400);
    run_for(5);
    CHECK(recorded("1 lost\n3 failed closed\n"));
    CHECK(strstr(rl_conn_detail(conn), "silent for 300 ms") != NULL);
    end();
    finish(pid);
}

static void talk_soon(int fd)
{
    expect(fd, "PING");
    pause_ms(20);
    say(fd, "+PONG\r\n");
    say(said[1], "!");
    pause_ms(10000);
}

static void what_came_while_the_process_stood_still_counts(void)
{
    rl_conn_options options = at(fake);
    char mark;
    pid_t pid;

    CHECK(pipe(said) == 0);
    pid = start_fake(fake, talk_soon);
    options.silent = 30;
    begin(&options);
    call(conn, 3, 30, "PING", NULL);
    run_for(0);
    CHECK(read(said[0], &mark, 1) == 1);
    pause_ms(50);
    wait_for("\n", 1);
    CHECK(recorded("3 replied PONG\n"));
    end();
    finish(pid);
    close(said[0]);
    close(said[1]);
}

/* ---- the end of a connection ---- */

static void talk_then_go(int fd)
{
    expect(fd, "last");
    say(fd, "+one\r\n");
}

static void a_loss_is_told_before_what_it_leaves_open(void)
{
    pid_t pid = start_fake(fake, talk_then_go);

    begin_at(fake);
    call(conn, 3, 0, "PING", NULL);
    call(conn, 4, 0, "PING", NULL);
    call(conn, 5, 0, "ECHO", "last");
    rl_loop_run(loop);
    run_for(5);
    CHECK(recorded("3 replied one\n1 lost\n4 failed closed\n"
                   "5 failed closed\n"));
    CHECK(strstr(rl_conn_detail(conn), "closed the connection") != NULL
          || strstr(rl_conn_detail(conn), "reset by peer") != NULL);
    CHECK(call(conn, 6, 0, "PING", NULL) == UV_ENOTCONN);
    CHECK(rl_conn_pending(conn) == 0);
    end();
    finish(pid);
}

/* More than one read(2) returns, then a reset, because our request was not
   read completely. */
static void talk_much_then_go(int fd)
{
    static char much[40001];
    char some[8];

    memset(much, 'x', sizeof(much) - 1);
    if (read(fd, some, sizeof(some)) != sizeof(some))
        _exit(1);
    say(fd, "$40000\r\n");
    say(fd, much);
    say(fd, "\r\n+last\r\n");
}

static void what_was_said_before_a_reset_is_heard(void)
{
    pid_t pid = start_fake(fake, talk_much_then_go);

    begin_at(fake);
    call(conn, 3, 0, "ECHO", "much");
    call(conn, 4, 0, "ECHO", "last");
    call(conn, 5, 0, "PING", NULL);
    run_for(0);
    CHECK(waitpid(pid, NULL, 0) == pid);
    rl_loop_run(loop);
    run_for(5);
    CHECK(strncmp(record, "3 replied xxx", 13) == 0);
    CHECK(strstr(record, "\n4 replied last\n1 lost\n5 failed closed\n")
          != NULL);
    end();
}

static pid_t gone;

static void talk_refusal_and_go(int fd)
{
    say(fd, "-ERR max number of clients reached\r\n");
}

static void call_when_it_has_gone(const rl_event *event)
{
    if (event->what != RL_OPENED)
        return;
    CHECK(waitpid(gone, NULL, 0) == gone);
    CHECK(call(conn, 3, 0, "PING", NULL) == 0);
    CHECK(call(conn, 4, 0, "PING", NULL) == 0);
}

static void what_was_said_before_we_could_write_is_heard(void)
{
    rl_conn_options options = at(fake);

    gone = start_fake(fake, talk_refusal_and_go);
    open_loop();
    on_event = call_when_it_has_gone;
    conn = connect_with(&options);
    wait_for("4 failed", 1);
    CHECK(recorded("7 opened\n3 replied ERR max number of clients reached\n"
                   "1 lost\n4 failed closed\n"));
    end();
}

static void a_killed_server_is_a_loss(void)
{
    const char *path = in_folder("victim");
    pid_t pid = start_redis(path);

    begin_at(path);
    call(conn, 3, 0, "DEBUG", "SLEEP");
    run_for(20);
    record[0] = '\0';
    call(conn, 4, 0, "PING", NULL);
    finish(pid);
    rl_loop_run(loop);
    run_for(5);
    CHECK(recorded("1 lost\n4 failed closed\n"));
    end();
}

static void talk_nonsense(int fd)
{
    expect(fd, "PING");
    say(fd, "HTTP/1.1 400 Bad Request\r\n\r\n");
    pause_ms(10000);
}

static void nonsense_is_a_loss(void)
{
    pid_t pid = start_fake(fake, talk_nonsense);

    begin_at(fake);
    call(conn, 3, 0, "PING", NULL);
    rl_loop_run(loop);
    run_for(5);
    CHECK(recorded("1 lost\n3 failed closed\n"));
    CHECK(strstr(rl_conn_detail(conn), "rotocol error") != NULL);
    end();
    finish(pid);
}

static void talk_without_bounds(int fd)
{
    expect(fd, "PING");
    say(fd, strange);
    pause_ms(10000);
}

static void a_reply_without_bounds_is_a_loss(void)
{
    static char line[(1 << 20) + 100];
    const char *const announced[] = { "*2147483647\r\n",
                                      "*1048577\r\n",
                                      "*1\r\n*2147483647\r\n",
                                      "$2147483647\r\n",
                                      "*2\r\n$1\r\nx\r\n$536870913",
                                      line };
    size_t i;

    memset(line, '+', sizeof(line) - 1);
    for (i = 0; i < sizeof(announced) / sizeof(announced[0]); i++) {
        double start = seconds();
        pid_t pid;

        strange = announced[i];
        pid = start_fake(fake, talk_without_bounds);
        begin_at(fake);
        call(conn, 3, 5000, "PING", NULL);
        rl_loop_run(loop);
        run_for(5);
        CHECK(recorded("1 lost\n3 failed closed\n"));
        CHECK(strstr(rl_conn_detail(conn), "rotocol error: ") != NULL);
        end();
        CHECK(seconds() - start < 2 * slow());
        finish(pid);
    }
}

static void talk_refusal(int fd)
{
    pause_ms(50);
    say(fd, "-ERR max number of clients reached\r\n");
    pause_ms(10000);
}

static void an_error_that_nobody_asked_for_is_a_loss(void)
{
    pid_t pid = start_fake(fake, talk_refusal);

    begin_at(fake);
    rl_loop_run(loop);
    CHECK(recorded("1 lost\n"));
    CHECK(strstr(rl_conn_detail(conn), "ERR max number of clients reached")
          != NULL);
    end();
    finish(pid);
}

static void talk_too_much(int fd)
{
    expect(fd, "PING");
    say(fd, "+PONG\r\n+OK ready\r\n");
    pause_ms(10000);
}

static void a_reply_that_nobody_asked_for_is_a_loss(void)
{
    pid_t pid = start_fake(fake, talk_too_much);

    begin_at(fake);
    call(conn, 3, 0, "PING", NULL);
    rl_loop_run(loop);
    CHECK(recorded("3 replied PONG\n1 lost\n"));
    end();
    finish(pid);
}

static void talk_messages(int fd)
{
    expect(fd, "subscribe");
    say(fd, "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    say(fd, "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n*1\r\n$1\r\nx\r\n");
    say(fd, strange);
    pause_ms(10000);
}

static void messages_of_unknown_shape_are_a_loss(void)
{
    static const char *const shapes[] = {
        "*3\r\n:1\r\n$1\r\na\r\n:1\r\n",
        "*3\r\n$7\r\nmessage\r\n*0\r\n:1\r\n",
        "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n$1\r\n1\r\n",
        "*2\r\n$7\r\nmessage\r\n$1\r\na\r\n",
        "*0\r\n",
        "*-1\r\n",
        "$-1\r\n",
        ":1\r\n"
    };
    rl_conn_options options = at(fake);
    size_t i;

    options.message = MESSAGE;
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        pid_t pid;

        strange = shapes[i];
        pid = start_fake(fake, talk_messages);
        begin(&options);
        CHECK(listen_to(conn, "subscribe", "a") == 0);
        rl_loop_run(loop);
        CHECK(recorded("2 pushed subscribe\n2 pushed message\n1 lost\n"));
        end();
        finish(pid);
    }
}

/* ---- closing ---- */

static void close_it(const rl_event *event)
{
    (void)event;
    rl_conn_close(conn);
    conn = NULL;
}

static void a_close_within_a_reply_is_silent(void)
{
    begin_at(real);
    on_event = close_it;
    call(conn, 3, 5000, "PING", NULL);
    call(conn, 4, 5000, "PING", NULL);
    rl_loop_run(loop);
    CHECK(recorded("3 replied PONG\n"));
    end();
}

static void close_at_loss(const rl_event *event)
{
    if (event->what == RL_LOST)
        close_it(event);
}

static void a_close_within_a_loss_is_silent(void)
{
    pid_t pid = start_fake(fake, talk_then_go);

    begin_at(fake);
    call(conn, 4, 0, "PING", NULL);
    call(conn, 5, 0, "ECHO", "last");
    call(conn, 6, 0, "PING", NULL);
    on_event = close_at_loss;
    rl_loop_run(loop);
    CHECK(recorded("4 replied one\n1 lost\n"));
    end();
    finish(pid);
}

static rl_conn *other;

static void close_the_other(const rl_event *event)
{
    (void)event;
    rl_conn_close(other);
    other = NULL;
}

static void a_close_from_another_ones_reply_is_silent(void)
{
    rl_conn_options options = at(fake);
    pid_t pid = start_fake(fake, talk_not);

    begin_at(real);
    other = connect_with(&options);
    wait_for("\n", 1);
    record[0] = '\0';
    on_event = close_the_other;
    call(other, 5, 300, "PING", NULL);
    call(conn, 9, 5000, "PING", NULL);
    wait_for("\n", 1);
    run_for(400);
    CHECK(recorded("9 replied PONG\n"));
    end();
    finish(pid);
}

static void what_is_closed_tells_which_ids_it_leaves(void)
{
    rl_conn_options options = at(real);

    open_loop();
    conn = connect_with(&options);
    CHECK(rl_conn_pending(conn) == 1);
    CHECK(rl_conn_pending_id(conn, 0) == OPEN);
    CHECK(call(conn, 3, 0, "PING", NULL) == UV_ENOTCONN);
    rl_conn_close(conn); /* while connecting */
    conn = NULL;
    rl_loop_run(loop);
    CHECK(recorded(""));
    end();
}

static int listening;

static rl_conn_options at_loopback(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t size = sizeof(address);
    rl_conn_options options = { .to = { .host = "127.0.0.1",
                                        .timeout = 5000 } };

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listening = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listening, (struct sockaddr *)&address, size) == 0);
    CHECK(listen(listening, 1) == 0);
    CHECK(getsockname(listening, (struct sockaddr *)&address, &size) == 0);
    options.to.port = ntohs(address.sin_port);
    return options;
}

/* The server's last read from a connection that we close: 0 after an orderly
   close, -1 after a reset. */
static ssize_t end_of_a_connection(int has_unanswered)
{
    rl_conn_options options = at_loopback();
    char bytes[64];
    ssize_t length;
    int fd;

    begin(&options);
    fd = accept(listening, NULL, NULL);
    if (has_unanswered) {
        call(conn, 3, 5000, "PING", NULL);
        run_for(5);
    }
    rl_conn_close(conn);
    conn = NULL;
    do {
        length = read(fd, bytes, sizeof(bytes));
    } while (length > 0);
    close(fd);
    close(listening);
    end();
    return length;
}

static void a_close_resets_a_connection_with_an_unanswered_command(void)
{
    CHECK(end_of_a_connection(1) == -1);
    CHECK(end_of_a_connection(0) == 0);
}

static void a_close_while_the_name_is_resolved_is_silent(void)
{
    rl_conn_options options = {
        .to = { .host = "no-such-host.invalid", .port = 6379, .timeout = 5000 }
    };

    open_loop();
    conn = connect_with(&options);
    rl_conn_close(conn);
    conn = NULL;
    rl_loop_run(loop);
    CHECK(recorded(""));
    end();
}

/* Overrides libc's function, for libuv too. */
int getaddrinfo(const char *host, const char *service,
                const struct addrinfo *hints, struct addrinfo **out)
{
    static int (*next)(const char *, const char *, const struct addrinfo *,
                       struct addrinfo **);

    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "getaddrinfo");
    if (strcmp(host, "slow.invalid") == 0
        && (hints->ai_flags & AI_NUMERICHOST) == 0)
        pause_ms(3000);
    return next(host, service, hints, out);
}

static void a_slow_resolver_does_not_hold_up_a_close(void)
{
    rl_conn_options options = {
        .to = { .host = "slow.invalid", .port = 6379, .timeout = 50 }
    };
    double started = seconds();

    open_loop();
    conn = connect_with(&options);
    wait_for("\n", 1);
    CHECK(recorded("7 failed connect\n"));
    rl_conn_close(conn);
    conn = NULL;
    CHECK(!rl_loop_lingers());
    CHECK(rl_loop_close(loop) == UV_EAGAIN);
    CHECK(rl_loop_lingers());
    CHECK(seconds() - started < 2);
    while (rl_loop_lingers() && seconds() - started < 30)
        pause_ms(50);
    CHECK(!rl_loop_lingers());
}

static void the_loop_drops_connections_that_nobody_closed(void)
{
    begin_at(real);
    call(conn, 3, 0, "PING", NULL);
    close_loop();
    CHECK(recorded(""));
    conn = NULL;
}

/* ---- connections that fail to open ---- */

static const char *refusal(const rl_conn_options *options)
{
    static char detail[RL_DETAIL];

    open_loop();
    conn = connect_with(options);
    CHECK(recorded(""));
    rl_loop_run(loop);
    CHECK(recorded("7 failed connect\n"));
    strcpy(detail, rl_conn_detail(conn));
    end();
    return detail;
}

static int free_port(int *listener)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t size = sizeof(address);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(*listener, (struct sockaddr *)&address, size) != 0
        || getsockname(*listener, (struct sockaddr *)&address, &size) != 0)
        exit(1);
    return ntohs(address.sin_port);
}

static void a_refused_port_says_so(void)
{
    rl_conn_options options = { .to = { .host = "127.0.0.1",
                                        .timeout = 5000 } };
    int bound;

    options.to.port = free_port(&bound);
    CHECK(strstr(refusal(&options), ": connection refused") != NULL);
    options.to.host = "::1";
    CHECK(strncmp(refusal(&options), "[::1]:", 6) == 0);
    close(bound);
}

static void a_missing_socket_says_so(void)
{
    rl_conn_options options = at("/no/such/socket");

    CHECK(
        strcmp(refusal(&options), "/no/such/socket: no such file or directory")
        == 0);
}

static void a_path_too_long_for_a_socket_says_so(void)
{
    char path[200];
    rl_conn_options options = at(path);

    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    CHECK(strstr(refusal(&options), ": name too long") != NULL);
}

static void an_unknown_host_says_so(void)
{
    rl_conn_options options = {
        .to = { .host = "no-such-host.invalid", .port = 6379, .timeout = 10000 }
    };
    const char *detail = refusal(&options);
    char host[1000];

    CHECK(strncmp(detail, "no-such-host.invalid:6379: ", 27) == 0);
    options.to.host = "a..b";
    CHECK(strncmp(refusal(&options), "a..b:6379: ", 11) == 0);
    memset(host, 'x', sizeof(host) - 1);
    host[sizeof(host) - 1] = '\0';
    options.to.host = host;
    refusal(&options);
}

/* A listener whose queue is full drops connections: nobody answers. */
static void an_address_that_never_answers_takes_the_time_given(void)
{
    rl_conn_options options = { .to = { .host = "127.0.0.1", .timeout = 80 } };
    struct sockaddr_in address = { .sin_family = AF_INET };
    int listener, filler[4], i;
    double started;

    options.to.port = free_port(&listener);
    listen(listener, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)options.to.port);
    for (i = 0; i < 4; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM, 0);
        fcntl(filler[i], F_SETFL, O_NONBLOCK);
        (void)!connect(filler[i], (struct sockaddr *)&address, sizeof(address));
    }
    pause_ms(20);
    started = seconds();
    CHECK(strstr(refusal(&options), "no connection within 80 ms") != NULL);
    CHECK(seconds() - started >= 0.080);
    CHECK(seconds() - started < 1 * slow());
    for (i = 0; i < 4; i++)
        close(filler[i]);
    close(listener);
}

static void the_next_address_is_tried_when_one_refuses(void)
{
    rl_conn_options options = { .to = { .host = "localhost",
                                        .timeout = 5000 } };
    int listener;

    options.to.port = free_port(&listener);
    listen(listener, 4);
    open_loop();
    conn = connect_with(&options);
    wait_for("\n", 1);
    CHECK(recorded("7 opened\n"));
    end();
    close(listener);
}

/* ---- subscribers ---- */

static void what_is_published_arrives(void)
{
    rl_conn_options options = at(real);
    const char *argv[] = { "PUBLISH", "ours", "hello" };
    size_t length[] = { 7, 4, 5 };

    options.message = MESSAGE;
    begin(&options);
    other = connect_with(&options);
    CHECK(listen_to(other, "subscribe", "ours") == UV_ENOTCONN);
    CHECK(call(conn, 3, 0, "PING", NULL) == 0);
    CHECK(listen_to(conn, "subscribe", "ours") == 0);
    CHECK(call(conn, 4, 0, "PING", NULL) == UV_EINVAL);
    wait_for("7 opened", 1);
    wait_for("2 pushed subscribe", 1);
    CHECK(rl_conn_call(other, 9, 0, 3, argv, length) == 0);
    wait_for("2 pushed message", 1);
    wait_for("9 replied", 1);
    CHECK(strstr(record, "3 replied PONG\n2 pushed subscribe\n") != NULL);
    CHECK(strstr(record, "2 pushed message\n") != NULL);
    CHECK(strstr(record, "9 replied 1\n") != NULL);
    rl_conn_close(other);
    end();
}

static void subscriptions_may_come_and_go_in_any_order(void)
{
    rl_conn_options options = at(real);
    int i;

    options.message = MESSAGE;
    begin(&options);
    for (i = 0; i < 100; i++) {
        CHECK(listen_to(conn, "unsubscribe", "a") == 0);
        CHECK(listen_to(conn, "subscribe", "a") == 0);
        CHECK(listen_to(conn, i % 3 ? "subscribe" : "unsubscribe", "a") == 0);
        CHECK(listen_to(conn, "unsubscribe", "b") == 0);
        CHECK(listen_to(conn, "unsubscribe", "a") == 0);
        if (i % 7 == 0)
            run_for(1);
    }
    wait_for(" pushed ", 499); /* the first one was not sent */
    CHECK(strstr(record, "lost") == NULL);
    record[0] = '\0';
    CHECK(listen_to(conn, "subscribe", "last") == 0);
    wait_for("\n", 1);
    CHECK(recorded("2 pushed subscribe\n"));
    end();
}

static void a_command_connection_takes_no_subscriptions(void)
{
    begin_at(real);
    CHECK(listen_to(conn, "subscribe", "a") == UV_EINVAL);
    end();
}

static void a_silent_subscriber_counts_as_gone(void)
{
    rl_conn_options options = at(fake);
    pid_t pid = start_fake(fake, talk_not);

    options.message = MESSAGE;
    options.silent = 30;
    begin(&options);
    CHECK(listen_to(conn, "subscribe", "a") == 0);
    rl_loop_run(loop);
    CHECK(recorded("1 lost\n"));
    end();
    finish(pid);
}

int main(void)
{
    pid_t redis;

    signal(SIGPIPE, SIG_IGN);
    strcpy(real, in_folder("redis"));
    strcpy(fake, in_folder("fake"));
    redis = start_redis(real);
    RUN(replies_come_in_order_with_their_ids);
    RUN(a_turn_of_the_loop_is_one_write);
    RUN(more_than_the_socket_takes_is_sent_bit_by_bit);
    RUN(names_without_one_reply_are_refused);
    RUN(a_reply_after_its_deadline_is_dropped);
    RUN(a_short_deadline_after_a_long_one_is_kept);
    RUN(a_close_at_the_first_timeout_silences_the_others);
    RUN(a_silent_server_counts_as_gone);
    RUN(what_came_while_the_process_stood_still_counts);
    RUN(a_loss_is_told_before_what_it_leaves_open);
    RUN(what_was_said_before_a_reset_is_heard);
    RUN(what_was_said_before_we_could_write_is_heard);
    RUN(a_killed_server_is_a_loss);
    RUN(nonsense_is_a_loss);
    RUN(a_reply_without_bounds_is_a_loss);
    RUN(an_error_that_nobody_asked_for_is_a_loss);
    RUN(a_reply_that_nobody_asked_for_is_a_loss);
    RUN(messages_of_unknown_shape_are_a_loss);
    RUN(a_close_within_a_reply_is_silent);
    RUN(a_close_within_a_loss_is_silent);
    RUN(a_close_from_another_ones_reply_is_silent);
    RUN(what_is_closed_tells_which_ids_it_leaves);
    RUN(a_close_resets_a_connection_with_an_unanswered_command);
    RUN(a_close_while_the_name_is_resolved_is_silent);
    RUN(a_slow_resolver_does_not_hold_up_a_close);
    RUN(the_loop_drops_connections_that_nobody_closed);
    RUN(a_refused_port_says_so);
    RUN(a_missing_socket_says_so);
    RUN(a_path_too_long_for_a_socket_says_so);
    RUN(an_unknown_host_says_so);
    RUN(an_address_that_never_answers_takes_the_time_given);
    RUN(the_next_address_is_tried_when_one_refuses);
    RUN(what_is_published_arrives);
    RUN(subscriptions_may_come_and_go_in_any_order);
    RUN(a_command_connection_takes_no_subscriptions);
    RUN(a_silent_subscriber_counts_as_gone);
    finish(redis);
    return check_end();
}
