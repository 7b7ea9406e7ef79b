/*
 * The bytes to send: commands, encoded in the Redis protocol, or frames.
 */
#ifndef RL_COMMAND_H
#define RL_COMMAND_H

#include <stddef.h>

/* The unsent bytes. All zero: empty. */
typedef struct rl_commands {
    char *text;
    size_t first; /* of the unsent bytes */
    size_t end;
    size_t size;
} rl_commands;

/* Adds a command. 0, or -1 when out of memory: then nothing is added. */
int rl_commands_add(rl_commands *self, int argc, const char *const *argv,
                    const size_t *length);

/* Adds a frame: its length in 4 bytes, then the bytes. As rl_commands_add. */
int rl_commands_add_frame(rl_commands *self, const char *bytes, size_t length);

/* Adds bytes as they are. As rl_commands_add. */
int rl_commands_add_bytes(rl_commands *self, const char *bytes, size_t length);

/* Drops the first count bytes, which have been sent. */
void rl_commands_sent(rl_commands *self, size_t count);

void rl_commands_free(rl_commands *self);

/* False for subscribe, unsubscribe and their variants, monitor, sync and
   client reply: they would shift the replies of later commands. */
int rl_command_has_one_reply(int argc, const char *const *argv,
                             const size_t *length);

#endif
