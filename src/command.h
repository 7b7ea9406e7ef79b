/*
 * Commands, encoded in the Redis protocol.
 */
#ifndef RL_COMMAND_H
#define RL_COMMAND_H

#include <stddef.h>

typedef struct rl_command {
    char *text; /* also terminated by a NUL */
    size_t length;
    size_t size;
} rl_command; /* all zero is an empty command */

/* 0, or -1 when out of memory. The next set reuses the memory. */
int rl_command_set(rl_command *self, int argc, const char *const *argv,
                   const size_t *length);

/* False for subscribe, unsubscribe and their variants, monitor, sync and
   client reply: they would shift the replies of later commands. */
int rl_command_has_one_reply(int argc, const char *const *argv,
                             const size_t *length);

void rl_command_free(rl_command *self);

#endif
