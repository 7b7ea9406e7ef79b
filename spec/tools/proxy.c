/* A proxy in front of a Redis that injects faults on demand: lost replies,
 * connections that break at the worst moment, networks that fall silent.
 *
 *     proxy LISTEN TARGET CONTROL
 *
 * All three are unix sockets. It listens on LISTEN, forwards each connection
 * to TARGET, and takes orders on CONTROL in the Redis protocol, from redis-cli
 * or any client. It prints "ready" once it listens.
 *
 *     DROP REPLIES n [text]     forwards the next n requests that contain text,
 *                               drops their replies
 *     MUTE n [text]             like DROP REPLIES, but drops all later replies
 *                               on the connection as well: as a network does,
 *                               because TCP leaves no gaps
 *     DROP REQUESTS n [text]    drops the next n such requests, and all later
 *                               ones on their connections
 *     DROP MESSAGES n [text]    drops the next n such published messages
 *     CUT n [text]              like DROP REPLIES, but closes the connection
 *                               when the reply arrives
 *     PRETEND n [text]          discards the next n such requests and replies 0
 *     HOLD ms [text]            delays the reply to the next such request, and
 *                               all after it on the connection, by ms
 *     LATE n [text]             holds back each of the next n such requests and
 *                               all after it on its connection, even if the
 *                               client closes the connection
 *     DELIVER                   sends the requests held back to the server,
 *                               over their original connections
 *     KEPT                      how many connections have held-back requests or
 *                               only wait for the server to close them
 *     DELAY percent ms seed     delays that share of requests and of replies,
 *                               and all after them, by up to ms, usually much
 *                               less; the client may close the connection
 *                               meanwhile
 *     FREEZE, THAW              forward nothing, accept nothing, close nothing
 *     KILL                      closes all connections at both ends
 *     COUNT [text]              how many requests that contain text it has seen
 *     CONNECTIONS               how many connections are open
 *     RESET                     clears orders and counts; thaws
 *
 * Text is matched anywhere in a request as it is on the wire. The first order
 * that matches a request applies. Requests and replies are parsed, so that a
 * fault hits the right reply of a pipeline. Pub/sub messages are distinguished
 * from replies, and the confirmations of a SUBSCRIBE are counted. Not
 * supported: MONITOR, RESP3 pushes as replies, inline commands.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define LOG_LIMIT (256u << 20)
#define MAX_WORDS 8
#define FOREVER LLONG_MAX

struct buffer {
    char *data;
    size_t len, cap;
};

enum fate {
    PASS,
    DROP_REPLY,
    DROP_REQUEST,
    DROP_MESSAGE,
    MUTE,
    CUT,
    HOLD,
    LATE,
    PRETEND
};

struct order {
    enum fate fate;
    long left, ms;
    struct buffer text;
    struct order *next;
};

/* A forwarded request that is still owed `left` replies. */
struct asked {
    enum fate fate;
    long ms, left;
    struct asked *next;
};

struct link {
    int client; /* -1: closed, with requests still kept back */
    int server; /* -1: a control connection */
    struct buffer from_client, to_server, from_server, to_client;
    struct asked *first, **last;
    long long held_until; /* ms, 0: replies are not held */
    long long kept_until; /* ms, 0: requests are not kept back */
    bool muted;           /* forwards nothing more to the client */
    bool deaf;            /* forwards nothing more to the server */
    bool ending;          /* ends once to_client is written */
    bool ended;
    struct link *next;
};

static struct link *links;
static struct order *orders;
static struct buffer seen; /* requests, each preceded by its length */
static bool frozen;
static long delay_percent, delay_ms;
static const char *target;

static void die(const char *what)
{
    fprintf(stderr, "proxy: %s: %s\n", what, strerror(errno));
    exit(1);
}

static long long now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static void *check(void *memory)
{
    if (!memory)
        die("memory");
    return memory;
}

static void append(struct buffer *b, const void *data, size_t len)
{
    if (b->cap - b->len < len) {
        b->cap = (b->len + len) * 2;
        b->data = check(realloc(b->data, b->cap));
    }
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
}

static void consume(struct buffer *b, size_t len)
{
    b->len -= len;
    if (b->len)
        memmove(b->data, b->data + len, b->len);
}

static bool contains(const char *data, size_t len, const struct buffer *text)
{
    return !text->len || memmem(data, len, text->data, text->len);
}

/* The protocol */

/* The number at text, up to the first character that is not a digit. */
static long read_number(const char *text)
{
    bool negative = *text == '-';
    long number = 0;

    for (text += negative; *text >= '0' && *text <= '9'; text++)
        number = number * 10 + (*text - '0');
    return negative ? -number : number;
}

/* Reads the number of the line whose digits begin at data[1]; returns the
 * line's size with its terminator, or 0 if it is incomplete. */
static size_t read_line(const char *data, size_t len, long *number)
{
    const char *end = len ? memchr(data, '\n', len) : NULL;

    if (!end)
        return 0;
    *number = read_number(data + 1);
    return (size_t)(end - data) + 1;
}

/* The size of the value at the beginning of data, or 0 if it is incomplete. */
static size_t value_size(const char *data, size_t len)
{
    long n;
    size_t size = read_line(data, len, &n);

    if (!size)
        return 0;
    if (strchr("$=!", data[0])) {
        size += n < 0 ? 0 : (size_t)n + 2;
        return size <= len ? size : 0;
    }
    if (!strchr("*~>%|", data[0]))
        return size;
    for (n *= data[0] == '%' || data[0] == '|' ? 2 : 1; n > 0; n--) {
        size_t item = value_size(data + size, len - size);
        if (!item)
            return 0;
        size += item;
    }
    return size;
}

/* Splits an array of bulk strings into at most MAX_WORDS words; returns how
 * many the array has. */
static long split(const char *data, size_t len, struct buffer *words)
{
    long count = 0, size = -1, i;
    size_t at;

    if (!len || (data[0] != '*' && data[0] != '>'))
        return 0;
    at = read_line(data, len, &count);
    for (i = 0; i < count && i < MAX_WORDS; i++) {
        size_t item = value_size(data + at, len - at);
        size_t head = read_line(data + at, len - at, &size);
        bool bulk = data[at] == '$' && size >= 0;
        words[i].data = (char *)(bulk ? data + at + head : data + at);
        words[i].len = bulk ? (size_t)size : 0;
        at += item;
    }
    return count;
}

static bool is_word(const struct buffer *word, const char *text)
{
    return word->len == strlen(text)
           && !strncasecmp(word->data, text, word->len);
}

/* Orders */

static struct order *find_order(const char *data, size_t len, bool message)
{
    struct order *o;

    for (o = orders; o; o = o->next)
        if (o->left > 0 && (o->fate == DROP_MESSAGE) == message
            && contains(data, len, &o->text))
            return o;
    return NULL;
}

static enum fate decide(const char *data, size_t len, bool message, long *ms)
{
    struct order *o = find_order(data, len, message);

    if (!o)
        return PASS;
    o->left--;
    *ms = o->ms;
    return o->fate;
}

static void add_order(enum fate fate, long left, long ms,
                      const struct buffer *text)
{
    struct order **end = &orders, *o = check(calloc(1, sizeof *o));

    o->fate = fate;
    o->left = left;
    o->ms = ms;
    append(&o->text, text->data, text->len);
    while (*end)
        end = &(*end)->next;
    *end = o;
}

static void deliver(void)
{
    struct link *l;

    for (l = links; l; l = l->next)
        l->kept_until = 0;
}

static void reset(void)
{
    while (orders) {
        struct order *o = orders;
        orders = o->next;
        free(o->text.data);
        free(o);
    }
    seen.len = 0;
    frozen = false;
    delay_percent = 0;
    deliver();
}

static void remember(const char *data, size_t len)
{
    if (seen.len + len > LOG_LIMIT)
        seen.len = 0;
    append(&seen, &len, sizeof len);
    append(&seen, data, len);
}

static long count_seen(const struct buffer *text)
{
    size_t at = 0, len;
    long count = 0;

    while (at < seen.len) {
        memcpy(&len, seen.data + at, sizeof len);
        at += sizeof len;
        count += contains(seen.data + at, len, text);
        at += len;
    }
    return count;
}

/* Connections */

static struct sockaddr_un address(const char *path)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };

    if (strlen(path) >= sizeof a.sun_path) {
        errno = ENAMETOOLONG;
        die(path);
    }
    strcpy(a.sun_path, path);
    return a;
}

static int listen_at(const char *path)
{
    struct sockaddr_un a = address(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    unlink(path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 511))
        die(path);
    return fd;
}

static int connect_to(const char *path)
{
    struct sockaddr_un a = address(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

static void accept_link(int listener, bool control)
{
    struct link *l;
    int server = -1, client = accept(listener, NULL, NULL);

    if (client < 0)
        return;
    if (!control && (server = connect_to(target)) < 0) {
        close(client);
        return;
    }
    fcntl(client, F_SETFL, O_NONBLOCK);
    if (server >= 0)
        fcntl(server, F_SETFL, O_NONBLOCK);
    l = check(calloc(1, sizeof *l));
    l->client = client;
    l->server = server;
    l->last = &l->first;
    l->next = links;
    links = l;
}

static void forget_first(struct link *l)
{
    struct asked *a = l->first;

    l->first = a->next;
    if (!l->first)
        l->last = &l->first;
    free(a);
}

static void free_link(struct link *l)
{
    if (l->client >= 0)
        close(l->client);
    if (l->server >= 0)
        close(l->server);
    while (l->first)
        forget_first(l);
    free(l->from_client.data);
    free(l->to_server.data);
    free(l->from_server.data);
    free(l->to_client.data);
    free(l);
}

static void free_ended(void)
{
    struct link *l, **at = &links;

    while ((l = *at)) {
        if (l->ended) {
            *at = l->next;
            free_link(l);
        } else {
            at = &l->next;
        }
    }
}

static void end_all(void)
{
    struct link *l;

    for (l = links; l; l = l->next)
        l->ended = l->server >= 0;
}

static long count_links(void)
{
    struct link *l;
    long count = 0;

    for (l = links; l; l = l->next)
        count += l->server >= 0;
    return count;
}

static long count_kept(void)
{
    struct link *l;
    long count = 0;

    for (l = links; l; l = l->next)
        count += l->kept_until || l->client < 0;
    return count;
}

/* How many replies a request will get. */
static long replies_of(const char *data, size_t len)
{
    struct buffer words[MAX_WORDS];
    long count = split(data, len, words);

    if (count > 1 && words[0].len >= 9
        && !strncasecmp(words[0].data + words[0].len - 9, "subscribe", 9))
        return count - 1;
    return 1;
}

static bool is_message(const char *data, size_t len)
{
    struct buffer words[MAX_WORDS];
    long count = split(data, len, words);

    return (count == 3
            && (is_word(&words[0], "message")
                || is_word(&words[0], "smessage")))
           || (count == 4 && is_word(&words[0], "pmessage"));
}

static long random_ms(void)
{
    return random() % delay_ms * (random() % 1000) / 1000 + 1;
}

/* Holds back the unwritten requests if LATE or DELAY applies. */
static enum fate delay(struct link *l, enum fate fate, long *ms)
{
    if (fate == LATE) {
        l->kept_until = FOREVER;
        return PASS;
    }
    if (fate == PASS && !l->kept_until && random() % 100 < delay_percent)
        l->kept_until = now_ms() + random_ms();
    if (fate == PASS && random() % 100 < delay_percent) {
        *ms = random_ms();
        return HOLD;
    }
    return fate;
}

/* What PRETEND sends instead of a request: a command whose reply is 0. */
static const char SPARE[] = "*3\r\n$7\r\nPUBLISH\r\n$1\r\n-\r\n$1\r\n-\r\n";

/* Processes all complete requests from the client. */
static void take_requests(struct link *l)
{
    size_t size;

    while ((size = value_size(l->from_client.data, l->from_client.len))) {
        const char *data = l->from_client.data;
        long ms = 0;
        enum fate fate = decide(data, size, false, &ms);
        remember(data, size);
        fate = delay(l, fate, &ms);
        l->deaf |= fate == DROP_REQUEST;
        if (!l->deaf) {
            struct asked *a = check(calloc(1, sizeof *a));
            a->fate = fate;
            a->ms = ms;
            a->left = replies_of(data, size);
            *l->last = a;
            l->last = &a->next;
            if (fate == PRETEND)
                append(&l->to_server, SPARE, sizeof(SPARE) - 1);
            else
                append(&l->to_server, data, size);
        }
        consume(&l->from_client, size);
    }
}

/* Processes one message or reply; returns false if the link must end. */
static bool take_reply(struct link *l, size_t size)
{
    const char *data = l->from_server.data;
    long ms = 0;
    bool pass;

    if (is_message(data, size)) {
        pass = decide(data, size, true, &ms) == PASS;
    } else {
        struct asked *a = l->first;
        pass = !a || a->fate == PASS || a->fate == HOLD || a->fate == PRETEND;
        if (a && a->fate == CUT)
            return false;
        if (a && a->fate == MUTE)
            l->muted = true;
        if (a && a->fate == HOLD && !l->held_until) {
            l->held_until = now_ms() + a->ms;
            a->fate = PASS;
            return true;
        }
        if (a && --a->left == 0)
            forget_first(l);
    }
    if (pass && !l->muted)
        append(&l->to_client, data, size);
    consume(&l->from_server, size);
    return true;
}

static void take_replies(struct link *l)
{
    size_t size;

    if (l->held_until && now_ms() >= l->held_until)
        l->held_until = 0;
    while (!l->ending && !l->held_until
           && (size = value_size(l->from_server.data, l->from_server.len)))
        l->ending = !take_reply(l, size);
}

/* Control */

static void answer(struct link *l, const char *text)
{
    append(&l->to_client, text, strlen(text));
}

static void answer_number(struct link *l, long number)
{
    char text[32];

    snprintf(text, sizeof text, ":%ld\r\n", number);
    answer(l, text);
}

/* An order's text is its last word, if present. */
static struct buffer text_at(const struct buffer *words, long count, long at)
{
    struct buffer none = { NULL, 0, 0 };

    return at < count && at < MAX_WORDS ? words[at] : none;
}

static long number_at(const struct buffer *words, long count, long at)
{
    /* Each word in the request ends with \r\n. */
    return at < count ? read_number(words[at].data) : 1;
}

static bool take_drop(const struct buffer *words, long count)
{
    static const struct {
        const char *name;
        enum fate fate;
    } kinds[] = {
        { "replies", DROP_REPLY },
        { "requests", DROP_REQUEST },
        { "messages", DROP_MESSAGE },
    };
    struct buffer text = text_at(words, count, 3);
    size_t i;

    for (i = 0; count > 1 && i < sizeof kinds / sizeof *kinds; i++) {
        if (is_word(&words[1], kinds[i].name)) {
            add_order(kinds[i].fate, number_at(words, count, 2), 0, &text);
            return true;
        }
    }
    return false;
}

static void take_order(struct link *l, const struct buffer *words, long count)
{
    struct buffer text = text_at(words, count, 2);

    if (is_word(&words[0], "count")) {
        text = text_at(words, count, 1);
        answer_number(l, count_seen(&text));
        return;
    }
    if (is_word(&words[0], "kept")) {
        answer_number(l, count_kept());
        return;
    }
    if (is_word(&words[0], "connections")) {
        answer_number(l, count_links());
        return;
    }
    if (is_word(&words[0], "drop")) {
        if (!take_drop(words, count)) {
            answer(l, "-ERR DROP REPLIES, REQUESTS or MESSAGES\r\n");
            return;
        }
    } else if (is_word(&words[0], "cut")) {
        add_order(CUT, number_at(words, count, 1), 0, &text);
    } else if (is_word(&words[0], "mute")) {
        add_order(MUTE, number_at(words, count, 1), 0, &text);
    } else if (is_word(&words[0], "pretend")) {
        add_order(PRETEND, number_at(words, count, 1), 0, &text);
    } else if (is_word(&words[0], "hold")) {
        add_order(HOLD, 1, number_at(words, count, 1), &text);
    } else if (is_word(&words[0], "late")) {
        add_order(LATE, number_at(words, count, 1), 0, &text);
    } else if (is_word(&words[0], "deliver")) {
        deliver();
    } else if (is_word(&words[0], "delay")) {
        delay_percent = number_at(words, count, 1);
        delay_ms = number_at(words, count, 2);
        srandom((unsigned)number_at(words, count, 3));
    } else if (is_word(&words[0], "freeze")) {
        frozen = true;
    } else if (is_word(&words[0], "thaw")) {
        frozen = false;
    } else if (is_word(&words[0], "kill")) {
        end_all();
    } else if (is_word(&words[0], "reset")) {
        reset();
    } else if (!is_word(&words[0], "ping") && !is_word(&words[0], "client")) {
        answer(l, "-ERR unknown order\r\n");
        return;
    }
    answer(l, "+OK\r\n");
}

static void take_orders(struct link *l)
{
    struct buffer words[MAX_WORDS];
    size_t size;

    while ((size = value_size(l->from_client.data, l->from_client.len))) {
        long count = split(l->from_client.data, size, words);
        if (count > 0)
            take_order(l, words, count);
        else
            answer(l, "-ERR not a command\r\n");
        consume(&l->from_client, size);
    }
}

/* The loop */

/* Reads what is available; returns false at the end of the connection. */
static bool fill(int fd, struct buffer *b)
{
    char data[65536];
    ssize_t n = read(fd, data, sizeof data);

    if (n > 0)
        append(b, data, (size_t)n);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static bool drain(int fd, struct buffer *b)
{
    ssize_t n = b->len ? write(fd, b->data, b->len) : 0;

    if (n > 0)
        consume(b, (size_t)n);
    return n >= 0 || errno == EAGAIN || errno == EINTR;
}

/* The client has closed the connection; returns false if the link must end. */
static bool lose_client(struct link *l)
{
    if (!l->kept_until)
        return false;
    close(l->client);
    l->client = -1;
    return true;
}

/* Writes requests to the server unless they are kept back, then their end. */
static bool drain_requests(struct link *l)
{
    if (l->kept_until > now_ms())
        return true;
    l->kept_until = 0;
    if (!drain(l->server, &l->to_server))
        return false;
    if (l->client < 0 && !l->to_server.len)
        shutdown(l->server, SHUT_WR);
    return true;
}

static bool drain_replies(struct link *l)
{
    if (l->client < 0)
        l->to_client.len = 0;
    return drain(l->client, &l->to_client) && !(l->ending && !l->to_client.len);
}

/* Processes the events of a link; returns false if it has ended. */
static bool work(struct link *l, short client_events, short server_events)
{
    const short readable = POLLIN | POLLHUP | POLLERR;

    if (l->ended)
        return false;
    if (l->server < 0) {
        if ((client_events & readable) && !fill(l->client, &l->from_client))
            return false;
        take_orders(l);
        return drain(l->client, &l->to_client);
    }
    if (frozen)
        return true;
    if ((client_events & readable) && !fill(l->client, &l->from_client)
        && !lose_client(l))
        return false;
    take_requests(l);
    if (!drain_requests(l))
        return false;
    if ((server_events & readable) && !fill(l->server, &l->from_server))
        l->ending = true;
    take_replies(l);
    return drain_replies(l);
}

static short wanted(const struct buffer *out)
{
    return (short)(POLLIN | (out->len ? POLLOUT : 0));
}

/* The shorter of a timeout and the time until `due`, if that is set. */
static int sooner(int timeout, long long due)
{
    long long left = due - now_ms();

    if (!due || due == FOREVER)
        return timeout;
    left = left < 0 ? 0 : left + 1;
    return timeout < 0 || left < timeout ? (int)left : timeout;
}

/* Fills in what to poll; returns the timeout. */
static int prepare(struct pollfd *fds)
{
    struct buffer none = { NULL, 0, 0 };
    struct link *l;
    int timeout = -1;

    for (l = links; l; l = l->next) {
        bool quiet = frozen && l->server >= 0;
        *fds++ =
            (struct pollfd){ quiet ? -1 : l->client, wanted(&l->to_client), 0 };
        *fds++ =
            (struct pollfd){ quiet || l->ending ? -1 : l->server,
                             wanted(l->kept_until ? &none : &l->to_server), 0 };
        if (!quiet)
            timeout = sooner(sooner(timeout, l->held_until), l->kept_until);
    }
    return timeout;
}

static void serve(int listener, int control)
{
    struct pollfd *fds = NULL;
    size_t count, i;

    for (;;) {
        struct link *l;
        for (count = 2, l = links; l; l = l->next)
            count += 2;
        fds = check(realloc(fds, count * sizeof *fds));
        fds[0] = (struct pollfd){ control, POLLIN, 0 };
        fds[1] = (struct pollfd){ frozen ? -1 : listener, POLLIN, 0 };
        if (poll(fds, count, prepare(fds + 2)) < 0) {
            if (errno == EINTR)
                continue;
            die("poll");
        }
        for (i = 2, l = links; l; l = l->next, i += 2)
            if (!work(l, fds[i].revents, fds[i + 1].revents))
                l->ended = true;
        free_ended();
        if (fds[0].revents)
            accept_link(control, true);
        if (fds[1].revents)
            accept_link(listener, false);
    }
}

int main(int argc, char **argv)
{
    int listener, control;

    if (argc != 4) {
        fprintf(stderr, "usage: proxy LISTEN TARGET CONTROL\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    target = argv[2];
    listener = listen_at(argv[1]);
    control = listen_at(argv[3]);
    puts("ready");
    fflush(stdout);
    serve(listener, control);
}
