/*
 * The Lua files linked into rlockctl. embed.c, a build tool, generates the
 * definition of rl_embedded from lua/.
 */
#ifndef RL_EMBED_H
#define RL_EMBED_H

#include <stddef.h>

struct rl_embedded {
    const char *name; /* "rlock/lock.lua"; NULL ends the list */
    const unsigned char *text;
    size_t length;
};

extern const struct rl_embedded rl_embedded[];

#endif
