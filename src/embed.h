/*
 * The Lua files linked into rlockctl. embed.lua, a build tool, generates the
 * definition of rl_embedded from lua/.
 */
#ifndef RL_EMBED_H
#define RL_EMBED_H

#include <stddef.h>

struct rl_embedded {
    const char *name; /* "rlock/client.lua" */
    const char *text; /* or NULL */
    size_t length;
    const char *code; /* bytecode for the release of Lua below, or NULL */
    size_t code_length;
};

extern const char rl_embedded_for[]; /* lua_ident of the Lua that wrote it */

extern const struct rl_embedded rl_embedded[]; /* sorted by name */
extern const size_t rl_embedded_count;

#endif
