/*
 * Commands in Redis' protocol.
 */
#ifndef RL_COMMAND_H
#define RL_COMMAND_H

#include <stddef.h>

typedef struct rl_command {
    char *text; /* ended by a NUL besides */
    size_t length;
    size_t size;
} rl_command; /* all zero is an empty one */

/* 0, or -1 when out of memory. The memory is used again by the next set. */
int rl_command_set(rl_command *self, int argc, const char *const *argv,
                   const size_t *length);

/* Not so: subscribe, unsubscribe and their kin, monitor, sync, client reply.
   After one of these, replies would be taken for those of other commands. */
int rl_command_has_one_reply(int argc, const char *const *argv,
                             const size_t *length);

void rl_command_free(rl_command *self);

#endif
