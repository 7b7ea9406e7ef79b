/*
 * Stands between the reader of a connection and hiredis' asynchronous part,
 * which aborts the program on replies that it cannot place: one that nobody
 * asked for, a message of an unknown shape. The guard makes them errors of
 * the connection.
 */
#ifndef RL_GUARD_H
#define RL_GUARD_H

#include <hiredis.h>
#include <stddef.h>

typedef struct rl_guard {
    redisReplyObjectFunctions functions;
    const redisReplyObjectFunctions *under;
    const size_t *waiting; /* how many replies are expected */
    const int *subscriber; /* are messages expected? */
    int refused;           /* the connection ends because of this */
} rl_guard;

/* All that is pointed to must outlive the reader. */
void rl_guard_attach(rl_guard *self, redisReader *reader, const size_t *waiting,
                     const int *subscriber);

#endif
