/*
 * A TCP server on 127.0.0.1 for HTTP requests without a body. It knows where a
 * request ends; its owner reads the request line and writes the response.
 */
#ifndef RL_SERVE_H
#define RL_SERVE_H

#include "loop.h"

typedef struct rl_server rl_server;

/*
 * Listens on a port. Each request is RL_ASKED for id, with its first line as
 * detail. Does not keep the loop running. Returns 0 or a UV_E* code.
 */
int rl_server_open(rl_server **out, rl_loop *loop, int64_t id, int port);

/*
 * Sends the response to the request that the sink is handling, and closes its
 * connection. A request without a response is only closed. Returns 0,
 * UV_EINVAL if there is no request, or UV_ENOMEM.
 */
int rl_server_answer(rl_server *self, const char *text, size_t length);

void rl_server_close(rl_server *self);

#endif
