/*
 * A connected, non-blocking socket and its encryption: what dial.h hands over,
 * and what a transport reads and writes.
 */
#ifndef RL_STREAM_H
#define RL_STREAM_H

#include <sys/types.h>

#include "tls.h"

typedef struct rl_stream {
    int fd;      /* to poll; -1: none */
    rl_tls *tls; /* NULL: not encrypted */
} rl_stream;

/*
 * Return the number of bytes read or written, 0 if the call would block, or a
 * UV_E* code. UV_EOF: the server closed the connection. After a partial write,
 * write the rest first; it may move and grow.
 */
ssize_t rl_stream_read(rl_stream *self, void *to, size_t size);
ssize_t rl_stream_write(rl_stream *self, const void *from, size_t size);

/* The sentence for this code. Call it at once after the failure. */
const char *rl_stream_error(const rl_stream *self, int err);

/* After a failed write: has the server sent something, such as its reason? */
int rl_stream_has_more(const rl_stream *self);

/*
 * Sets what the kernel does with unsent bytes when the socket is closed,
 * including when the process dies. By default it discards them and resets the
 * connection, so that no abandoned request is delivered late. For an orderly
 * close it sends them.
 */
void rl_stream_linger(const rl_stream *self, int is_orderly);

/* The IP address of our end, as text. Returns 0, or -1 if there is none. */
int rl_stream_address(const rl_stream *self, char *to, size_t size);

/* Closes both, if they are open. Close the uv_poll_t of fd first. */
void rl_stream_close(rl_stream *self);

#endif
