/* A network of a given delay in front of a Redis, for where the kernel has no
 * netem: forwards each connection, and hands on what it reads half a round trip
 * later.
 *
 *     delay LISTEN_PORT TARGET_PORT ROUND_TRIP_MS
 *
 * Both ports are of 127.0.0.1. Prints "ready" once it listens.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST 4096 /* sockets */

struct chunk {
    struct chunk *next;
    double due;
    size_t done, size;
    char bytes[];
};

/* One direction: what was read from `from`, to be written to its other end. */
struct side {
    int fd, other; /* other: the index of the opposite side */
    struct chunk *first, **last;
};

static struct side sides[MOST];
static struct pollfd polls[MOST + 1];
static int count;
static double delay;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static struct sockaddr_in at(const char *port)
{
    struct sockaddr_in a = { .sin_family = AF_INET };

    a.sin_port = htons((uint16_t)atoi(port));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

static void add(int fd, int other)
{
    int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    sides[count] = (struct side){ .fd = fd, .other = other };
    sides[count].last = &sides[count].first;
    count++;
}

static void welcome(int listener, struct sockaddr_in target)
{
    int to, fd = accept(listener, NULL, NULL);

    if (fd < 0)
        return;
    to = socket(AF_INET, SOCK_STREAM, 0);
    if (count + 2 > MOST
        || connect(to, (struct sockaddr *)&target, sizeof target) != 0) {
        close(fd);
        close(to);
        return;
    }
    add(fd, count + 1);
    add(to, count - 1);
}

static void end(int i)
{
    int other = sides[i].other;

    shutdown(sides[i].fd, SHUT_RDWR);
    close(sides[i].fd);
    shutdown(sides[other].fd, SHUT_RDWR);
    close(sides[other].fd);
    sides[i].fd = sides[other].fd = -1;
}

static void take(int i)
{
    static char bytes[65536];
    struct side *self = &sides[i];
    ssize_t n = read(self->fd, bytes, sizeof bytes);
    struct chunk *c;

    if (n <= 0) {
        end(i);
        return;
    }
    c = calloc(1, sizeof *c + (size_t)n);
    if (!c)
        die("calloc");
    c->size = (size_t)n;
    c->due = now() + delay;
    memcpy(c->bytes, bytes, c->size);
    *self->last = c;
    self->last = &c->next;
}

/* Writes what is due; returns when the next is, or 0. */
static double hand_on(int i)
{
    struct side *self = &sides[i];
    int to = sides[self->other].fd;
    struct chunk *c;

    while ((c = self->first) && c->due <= now()) {
        ssize_t n =
            send(to, c->bytes + c->done, c->size - c->done, MSG_NOSIGNAL);
        if (n < 0) {
            end(i);
            return 0;
        }
        c->done += (size_t)n;
        if (c->done < c->size)
            continue;
        self->first = c->next;
        if (!self->first)
            self->last = &self->first;
        free(c);
    }
    return c ? c->due : 0;
}

/* Waits until there is something to read or hand on. */
static void wait_for(double due)
{
    double left = due > 0 ? due - now() : 3600;
    struct timespec t = { 0 };
    int i;

    if (left > 0) {
        t.tv_sec = (time_t)left;
        t.tv_nsec = (long)((left - (double)t.tv_sec) * 1e9);
    }
    for (i = 0; i < count; i++)
        polls[i + 1] = (struct pollfd){ .fd = sides[i].fd, .events = POLLIN };
    if (ppoll(polls, (nfds_t)count + 1, &t, NULL) < 0 && errno != EINTR)
        die("ppoll");
}

int main(int argc, char **argv)
{
    int one = 1, i, known, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in here, target;

    if (argc != 4) {
        fprintf(stderr, "usage: delay LISTEN_PORT TARGET_PORT MS\n");
        return 2;
    }
    here = at(argv[1]);
    target = at(argv[2]);
    delay = atof(argv[3]) / 2000;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) != 0
        || listen(listener, 1024) != 0)
        die("listen");
    puts("ready");
    fflush(stdout);
    polls[0] = (struct pollfd){ .fd = listener, .events = POLLIN };
    while (1) {
        double due = 0;
        for (i = 0; i < count; i++) {
            double next = sides[i].fd < 0 ? 0 : hand_on(i);
            if (next > 0 && (due <= 0 || next < due))
                due = next;
        }
        wait_for(due);
        known = count;
        for (i = 0; i < known; i++)
            if (sides[i].fd >= 0 && polls[i + 1].revents)
                take(i);
        if (polls[0].revents)
            welcome(listener, target);
    }
}
