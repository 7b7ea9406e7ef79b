/*
 * A connection of frames: a length of 4 bytes, big-endian, then that many
 * bytes. ZooKeeper speaks in frames; this file does not know what is in them.
 * Its servers also answer to words without a length ("srvr"), for people.
 */
#ifndef RL_FRAMES_H
#define RL_FRAMES_H

#include "dial.h"

typedef struct rl_frames rl_frames;

typedef struct rl_frames_options {
    rl_dial_options to; /* without fn and arg */
    size_t limit;       /* the longest frame that may arrive; 0: no frames, but
                           bytes as they come */
    int64_t lost;       /* id of RL_LOST, or 0 */
    int64_t frame;      /* id of RL_FRAME */
} rl_frames_options;

enum { RL_ADDRESS = 48 }; /* room for an IP address */

/*
 * Starts to connect. Completes with RL_OPENED or RL_FAILED "connect" for id, in
 * a later turn of the loop. Returns 0, or a UV_E* code with a message in why
 * (RL_DETAIL bytes). Keeps no pointers from options.
 *
 * Reports RL_FRAME for each frame that arrives. If an open connection ends
 * without rl_frames_close, even because a frame is too long, reports RL_LOST
 * once.
 */
int rl_frames_open(rl_frames **out, rl_loop *loop, int64_t id,
                   const rl_frames_options *options, char *why);

/* Queues a frame; those queued in a turn of the loop share a write. Returns 0;
   UV_ENOTCONN if not open (rl_frames_detail says why); UV_ENOMEM. */
int rl_frames_send(rl_frames *self, const char *bytes, size_t length);

const char *rl_frames_detail(const rl_frames *self);

/* The IP address of our end. Returns 0, or -1 if that is unknown. */
int rl_frames_address(const rl_frames *self, char to[RL_ADDRESS]);

/* The id of rl_frames_open until it completes; then 0. */
int64_t rl_frames_pending(const rl_frames *self);

/* Drops the unsent bytes, and resets the connection. Reports nothing. */
void rl_frames_close(rl_frames *self);

#endif
