/*
 * Helpers shared by the files of the module rlock.core. core.c is the module,
 * the dispatcher and run; each of core_*.c adds functions, and the classes of
 * the handles that they return.
 *
 * A refusal is nil, code, detail. Durations are integers, in milliseconds.
 */
#ifndef RL_BORDER_H
#define RL_BORDER_H

#include <lauxlib.h>
#include <lua.h>

#include "loop.h"
#include "tls.h"

/* Upvalue 1 of all functions. Its user value is the dispatcher. */
typedef struct rl_core {
    rl_loop *loop;     /* NULL: the state is being closed */
    lua_State *L;      /* the caller of core.run */
    int failed;        /* an error message is on its stack */
    const char **argv; /* the arguments of one command */
    size_t *lengths;
    int room;
} rl_core;

/* The core of a function of the module. Raises if it is closed. */
rl_core *rl_core_of(lua_State *L);

/* Adds functions to the module on top of the stack, with the core that lies
   below it as their upvalue 1. */
void rl_core_add(lua_State *L, const luaL_Reg *functions);

/* The same, for the functions of one file. */
void rl_core_add_conn(lua_State *L);
void rl_core_add_file(lua_State *L);
void rl_core_add_http(lua_State *L);
void rl_core_add_process(lua_State *L);
void rl_core_add_signal(lua_State *L);
void rl_core_add_system(lua_State *L);

/* ---- arguments ---- */

static const lua_Integer RL_MAX_MS = (lua_Integer)1 << 40;

/* Return the argument; raise if it is invalid. */
lua_Integer rl_check_id(lua_State *L, int arg);
uint64_t rl_check_ms(lua_State *L, int arg);
int rl_check_signal(lua_State *L, int arg);

/* Return a field of the table, and leave its value on the stack; NULL or 0 if
   it is nil. Raise unless it is a string without NUL, or from 0 to max. */
const char *rl_opt_string(lua_State *L, int table, const char *field);
lua_Integer rl_opt_integer(lua_State *L, int table, const char *field,
                           lua_Integer max);

/* The TLS options in the field `tls` of the table, or NULL. Their strings stay
   on the stack. */
const rl_tls_options *rl_opt_tls(lua_State *L, int table, rl_tls_options *tls);

/* The descriptor of a lock file, or -1 if it is closed. */
int rl_lock_descriptor(lua_State *L, int arg);

/* ---- results: push and return the count ---- */

int rl_push_true(lua_State *L);
int rl_refuse(lua_State *L, const char *code, const char *detail);
int rl_refuse_uv(lua_State *L, const char *code, int err);
int rl_no_memory(lua_State *L); /* raises */

/* ---- handles ---- */

/*
 * An object that Lua closes. The userdata exists before its resource.
 * :close(), __gc and __close clear the resource before they release it. The end
 * of the loop releases those that belong to it.
 */
typedef struct rl_handle {
    void *resource; /* NULL: not yet open, or closed */
    void (*close)(void *resource);
    rl_core *core;  /* NULL: the resource does not belong to the loop */
    int64_t number; /* the id of a timer, the descriptor of a lock */
} rl_handle;

/* Registers a class. Its methods, or NULL, are added to close. */
void rl_handle_class(lua_State *L, const char *name, const luaL_Reg *methods);

/* Pushes a handle without a resource. */
rl_handle *rl_handle_new(lua_State *L, rl_core *core, const char *name,
                         void (*close)(void *));

/* The resource, or NULL once it is closed or the loop has taken it. */
void *rl_handle_resource(const rl_handle *self);

/* Closes the resource. Idempotent. */
void rl_handle_release(rl_handle *self);

/* ---- signals ---- */

/* Clears the record of the running coroutine, before its state is closed. */
void rl_core_forget_running(void);

#endif
