/*
 * A connection of bytes, which conn.h and frames.h share: it connects, writes
 * what is queued just before the loop waits, and reports how it ends.
 *
 *     OPENING -> OPEN -> ENDED
 *
 * A protocol's connection has the rl_transport as its first member. It is
 * reference-counted: its users are the owner, the uv handles, and stack frames
 * that may call the sink.
 */
#ifndef RL_TRANSPORT_H
#define RL_TRANSPORT_H

#include "command.h"
#include "dial.h"
#include "timer.h"

typedef struct rl_transport rl_transport;

/* What a protocol does. Only `read` and `free` are required. */
typedef struct rl_protocol {
    const char *tls_hint;          /* follows the errors of a handshake */
    void (*read)(rl_transport *);  /* there are bytes, or an error, to read */
    void (*alarm)(rl_transport *); /* the timer fired while OPEN */
    void (*ended)(rl_transport *); /* its end was reported */
    void (*free)(rl_transport *);  /* its own memory, and the struct */
    size_t (*pending)(rl_transport *); /* the number of commands in flight */
} rl_protocol;

struct rl_transport {
    rl_owner base;
    const rl_protocol *protocol;
    rl_loop *loop;
    int users;
    enum { OPENING, OPEN, ENDED } state;
    int closed;             /* by rl_transport_close: report nothing more */
    int64_t id;             /* of rl_transport_open; 0 after its completion */
    int64_t lost;           /* id of RL_LOST, or 0 */
    char *name;             /* "host:port" or the path, for messages */
    char detail[RL_DETAIL]; /* why it is not open */

    rl_dial *dial;    /* only while OPENING */
    rl_stream stream; /* only while OPEN */
    uv_poll_t poll;   /* only while OPEN */
    uv_prepare_t flush;
    rl_timer *timer;
    rl_commands unsent;
    int queued;  /* for the protocol; a write sets it to 0 */
    int is_full; /* the socket; it is polled for writability */
};

/* Allocates `size` zeroed bytes, which begin with an rl_transport. NULL when
   out of memory. Writes that to why, as rl_transport_open does a failure. */
void *rl_transport_new(size_t size, const rl_protocol *protocol, rl_loop *loop,
                       char *why);

/*
 * Starts to connect; fn and arg of the options are not used. Completes with
 * RL_OPENED or RL_FAILED "connect" for id, in a later turn of the loop. If an
 * open connection ends by itself, reports RL_LOST once. Returns 0, or a UV_E*
 * code with a message in why (RL_DETAIL bytes); then close it. Keeps no
 * pointers from options.
 */
int rl_transport_open(rl_transport *self, int64_t id,
                      const rl_dial_options *options, char *why);

/* May something be sent? */
int rl_transport_is_open(const rl_transport *self);

/* Writes what was added to `unsent`, just before the loop waits. */
void rl_transport_flush(rl_transport *self);

/* Writes it now, as far as the socket takes it. */
void rl_transport_write(rl_transport *self);

/* Ends the connection, which is reported in the next turn of the loop. */
void rl_transport_end(rl_transport *self, const char *why);

/* Closes without a report. Resets the connection, unless the protocol says that
   no command is in flight. */
void rl_transport_close(rl_transport *self);

#endif
