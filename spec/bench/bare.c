/* The baseline of `make bench`: the same work in C and hiredis alone, without
 * libuv, Lua, deadlines or anything else that a lock needs.
 *
 *     bare SERVER CLIENTS SECONDS ACQUIRE.lua RELEASE.lua
 *
 * CLIENTS virtual clients share one connection to the Redis at SERVER, which is
 * the path of a socket, or HOST:PORT. Each takes and releases a lock of its
 * own, repeatedly, by EVALSHA of the two scripts; the commands are formatted in
 * advance. The window slides: each round reads the replies that have arrived
 * and sends the next commands of their clients, with a write for each quarter
 * of them, as rlock does. With one client that is a plain round trip.
 *
 * Prints one line of JSON: cycles, seconds, cycles per second, processor time
 * of this process per cycle and in all, resident memory, latency of a cycle
 * (mean; median and 99th percentile of the first client), and the server's own
 * time per EVALSHA.
 */
#include <hiredis.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WARM_UP 0.2 /* seconds */
#define LEASE "30000"

struct command {
    char *text;
    size_t len;
};

struct client {
    struct command acquire, release;
    bool holds;
};

/* The clients with replies in flight, in order. */
struct queue {
    int *items;
    size_t size, head, count;
};

struct stats {
    long long cycles;
    float *samples; /* microseconds, of the first client */
    size_t count, cap;
    double begun; /* its current cycle */
};

static redisContext *redis;

static void die(const char *what)
{
    fprintf(stderr, "bare: %s\n", what);
    exit(1);
}

static void *check(void *memory)
{
    if (!memory)
        die("no memory");
    return memory;
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

/* Connects to HOST:PORT or to a socket. */
static redisContext *dial(const char *server)
{
    const char *colon = strrchr(server, ':');
    char host[256];

    if (!colon || *server == '/')
        return redisConnectUnix(server);
    snprintf(host, sizeof host, "%.*s", (int)(colon - server), server);
    return redisConnect(host, atoi(colon + 1));
}

static redisReply *command(const char *format, const char *arg)
{
    redisReply *reply = redisCommand(redis, format, arg);

    if (!reply || reply->type == REDIS_REPLY_ERROR)
        die(reply ? reply->str : redis->errstr);
    return reply;
}

/* Loads a script from a file; writes its sha to sha[41]. */
static void load(const char *path, char *sha)
{
    char text[8192];
    redisReply *reply;
    FILE *file = fopen(path, "rb");
    size_t len = file ? fread(text, 1, sizeof text - 1, file) : 0;

    if (!len)
        die(path);
    fclose(file);
    text[len] = '\0';
    reply = command("SCRIPT LOAD %s", text);
    snprintf(sha, 41, "%s", reply->str);
    freeReplyObject(reply);
}

static struct command format(const char **words, int count)
{
    struct command c;
    long long len = redisFormatCommandArgv(&c.text, count, words, NULL);

    if (len < 0)
        die("no memory");
    c.len = (size_t)len;
    return c;
}

static struct client make_client(int i, const char *acquire,
                                 const char *release)
{
    struct client c = { .holds = false };
    char key[32], channel[64], owner[64];
    const char *taking[] = { "EVALSHA", acquire, "2",   key,
                             channel,   owner,   LEASE, "1" };
    const char *freeing[] = { "EVALSHA", release, "2", key,      channel,
                              owner,     LEASE,   "0", "publish" };

    snprintf(key, sizeof key, "bench:%d", i);
    snprintf(channel, sizeof channel, "redisson_lock__channel:{%s}", key);
    snprintf(owner, sizeof owner, "b8a2c9e4-5d1f-4b7a-9c3e-2f6d8a0b1c4e:%d", i);
    c.acquire = format(taking, 8);
    c.release = format(freeing, 9);
    return c;
}

/* The server's EVALSHA calls so far, and its microseconds in them. */
static void read_stats(double *calls, double *usec)
{
    redisReply *reply = command("INFO %s", "commandstats");
    const char *line = strstr(reply->str, "cmdstat_evalsha:");

    *calls = *usec = 0;
    if (line
        && sscanf(line, "cmdstat_evalsha:calls=%lf,usec=%lf", calls, usec) != 2)
        die("INFO commandstats is not as expected");
    freeReplyObject(reply);
}

static void send_next(struct client *clients, struct queue *q, int i)
{
    struct client *c = &clients[i];
    struct command *next = c->holds ? &c->release : &c->acquire;

    if (redisAppendFormattedCommand(redis, next->text, next->len))
        die(redis->errstr);
    q->items[(q->head + q->count++) % q->size] = i;
}

static void sample(struct stats *s)
{
    double at = now();

    if (s->count == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 65536;
        s->samples = check(realloc(s->samples, s->cap * sizeof *s->samples));
    }
    s->samples[s->count++] = (float)((at - s->begun) * 1e6);
    s->begun = at;
}

/* Takes one reply; returns its client. */
static int take_reply(struct client *clients, struct queue *q,
                      redisReply *reply, struct stats *s)
{
    int i = q->items[q->head];
    struct client *c = &clients[i];
    const char *verdict = c->holds ? "freed" : "held";

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 1
        || strcmp(reply->element[0]->str, verdict) != 0)
        die(reply->type == REDIS_REPLY_ERROR ? reply->str
                                             : "not the verdict expected");
    freeReplyObject(reply);
    q->head = (q->head + 1) % q->size;
    q->count--;
    if (c->holds) {
        s->cycles++;
        if (i == 0)
            sample(s);
    }
    c->holds = !c->holds;
    return i;
}

/* Resident memory in kB, 0 where there is no /proc. */
static long resident(void)
{
    long all, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (file && fscanf(file, "%ld %ld", &all, &pages) != 2)
        pages = 0;
    if (file)
        fclose(file);
    return pages * 4;
}

static void flush(void)
{
    int done = 0;

    while (!done)
        if (redisBufferWrite(redis, &done))
            die(redis->errstr);
}

/* How many commands to queue before a write, as in src/conn.c. */
static int part_of(int in_flight)
{
    int n = in_flight / 4;

    return n < 2 ? 2 : n < 64 ? n : 64;
}

/* Runs cycles for this time, then until all locks are free. */
static void run(struct client *clients, struct queue *q, double seconds,
                struct stats *s)
{
    double end = now() + seconds;
    bool more = true;
    int i, queued = 0, part = part_of((int)q->size);

    s->begun = now();
    for (i = 0; i < (int)q->size; i++) {
        send_next(clients, q, i);
        if (++queued % part == 0)
            flush();
    }
    while (q->count) {
        void *reply;
        flush();
        if (redisBufferRead(redis))
            die(redis->errstr);
        more = more && now() < end;
        while (!redisGetReplyFromReader(redis, &reply) && reply) {
            i = take_reply(clients, q, reply, s);
            if (!more && !clients[i].holds)
                continue;
            send_next(clients, q, i);
            if (++queued % part == 0)
                flush();
        }
        if (redis->err)
            die(redis->errstr);
    }
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static double percentile(struct stats *s, double share)
{
    return s->count ? s->samples[(size_t)(share * (double)(s->count - 1))] : 0;
}

int main(int argc, char **argv)
{
    char acquire[41], release[41];
    double calls, usec, calls_before, usec_before, elapsed, cpu, cycles;
    struct queue q = { 0 };
    struct stats warm = { 0 }, s = { 0 };
    struct client *clients;
    int i, count = argc == 6 ? atoi(argv[2]) : 0;

    if (count < 1) {
        fprintf(stderr, "usage: bare SERVER CLIENTS SECONDS ACQUIRE RELEASE\n");
        return 2;
    }
    redis = dial(argv[1]);
    if (!redis || redis->err)
        die(redis ? redis->errstr : "no memory");
    load(argv[4], acquire);
    load(argv[5], release);
    clients = check(calloc((size_t)count, sizeof *clients));
    q.size = (size_t)count;
    q.items = check(calloc(q.size, sizeof *q.items));
    for (i = 0; i < count; i++)
        clients[i] = make_client(i, acquire, release);

    run(clients, &q, WARM_UP, &warm);
    read_stats(&calls_before, &usec_before);
    elapsed = now();
    cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    run(clients, &q, atof(argv[3]), &s);
    cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    elapsed = now() - elapsed;
    read_stats(&calls, &usec);

    cycles = (double)s.cycles;
    qsort(s.samples, s.count, sizeof *s.samples, compare);
    printf("{\"tasks\":%d,\"cycles\":%.0f,\"seconds\":%.3f,\"rate\":%.0f,"
           "\"cpu_us\":%.3f,\"mean_us\":%.2f,\"p50_us\":%.2f,\"p99_us\":%.2f,"
           "\"server_us\":%.3f,\"count\":%.0f,\"total\":%lld,"
           "\"cpu_s\":%.6f,\"rss_kb\":%ld}\n",
           count, cycles, elapsed, cycles / elapsed, cpu / cycles * 1e6,
           elapsed * count / cycles * 1e6, percentile(&s, 0.50),
           percentile(&s, 0.99), (usec - usec_before) / (calls - calls_before),
           cycles, s.cycles + warm.cycles, cpu, resident());
    return 0;
}
