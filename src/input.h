/*
 * Reports that a file descriptor, such as a terminal, is readable.
 */
#ifndef RL_INPUT_H
#define RL_INPUT_H

#include "loop.h"

typedef struct rl_input rl_input;

/*
 * Reports RL_FIRED for id while fd is readable or at its end. Keeps the loop
 * running, and does not own fd. 0 or a UV_E* code: UV_EPERM for a plain file,
 * which is always readable.
 */
int rl_input_open(rl_input **out, rl_loop *loop, int64_t id, int fd);
void rl_input_close(rl_input *self);

/* Has the other end of fd, such as a terminal, hung up? */
int rl_input_has_gone(int fd);

#endif
