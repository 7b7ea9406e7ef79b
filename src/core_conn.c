/*
 * The part of rlock.core for connections.
 */
#include "border.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conn.h"
#include "frames.h"

#define CONN "rlock.core.conn"
#define FRAMES "rlock.core.frames"

static const char CLOSED[] = "the connection was closed";

/* Where to connect, and the id of RL_LOST. The strings stay on the stack. */
static int64_t get_dial_options(lua_State *L, int table, rl_dial_options *to,
                                rl_tls_options *tls)
{
    luaL_checktype(L, table, LUA_TTABLE);
    luaL_checkstack(L, 16, NULL);
    to->host = rl_opt_string(L, table, "host");
    to->port = (int)rl_opt_integer(L, table, "port", 65535);
    to->path = rl_opt_string(L, table, "path");
    to->timeout = (uint64_t)rl_opt_integer(L, table, "timeout", RL_MAX_MS);
    if (to->path == NULL && (to->host == NULL || to->port == 0))
        luaL_argerror(L, table, "host and port, or path expected");
    to->tls = rl_opt_tls(L, table, tls);
    return rl_opt_integer(L, table, "lost", LUA_MAXINTEGER);
}

static rl_handle *check_handle(lua_State *L, const char *class)
{
    rl_handle *self = luaL_checkudata(L, 1, class);

    if (self->core->loop == NULL)
        luaL_error(L, "rlock.core is closed");
    return self;
}

/* ---- connections to Redis ---- */

static void close_conn(void *resource)
{
    rl_conn_close(resource);
}

/* core.connect(id, options) -> conn | nil, code, detail */
static int core_connect(lua_State *L)
{
    rl_core *self = rl_core_of(L);
    lua_Integer id = rl_check_id(L, 1);
    rl_tls_options tls = { 0 };
    rl_conn_options options = { 0 };
    char why[RL_DETAIL];
    rl_handle *new;
    rl_conn *conn = NULL;
    int err;

    lua_settop(L, 2);
    options.lost = get_dial_options(L, 2, &options.to, &tls);
    options.silent = (uint64_t)rl_opt_integer(L, 2, "silent", RL_MAX_MS);
    options.message = rl_opt_integer(L, 2, "message", LUA_MAXINTEGER);
    new = rl_handle_new(L, self, CONN, close_conn);
    err = rl_conn_open(&conn, self->loop, id, &options, why);
    new->resource = conn;
    return err == 0 ? 1 : rl_refuse(L, "connect", why);
}

static void core_reserve(lua_State *L, rl_core *self, int count)
{
    const char **argv;
    size_t *lengths;

    if (count <= self->room)
        return;
    argv = realloc(self->argv, (size_t)count * sizeof(*argv));
    if (argv == NULL)
        rl_no_memory(L);
    self->argv = argv;
    lengths = realloc(self->lengths, (size_t)count * sizeof(*lengths));
    if (lengths == NULL)
        rl_no_memory(L);
    self->lengths = lengths;
    self->room = count;
}

/* Converts the argument at this index to a string in place. */
static void to_string(lua_State *L, int index)
{
    char text[64];

    if (lua_type(L, index) != LUA_TNUMBER)
        luaL_error(L, "a word must be a string or a number");
    if (!lua_isinteger(L, index)) {
        snprintf(text, sizeof(text), "%.17g", lua_tonumber(L, index));
        lua_pushstring(L, text);
        lua_replace(L, index);
    }
    lua_tolstring(L, index, NULL);
}

/*
 * Pushes words 1 to count of a table as strings. Converting a number may run
 * the garbage collector, a user's finalizer and, through it, this function
 * again: so all words are converted before core->argv is filled.
 */
static void push_words(lua_State *L, int table, int count)
{
    int i;

    luaL_checkstack(L, count + 1, "too many words");
    for (i = 1; i <= count; i++) {
        lua_rawgeti(L, table, i);
        if (lua_type(L, -1) != LUA_TSTRING)
            to_string(L, lua_gettop(L));
    }
}

/* Fills core->argv and core->lengths from `at` with the strings from `first`
   to the top of the stack, where they stay. Returns the number of words. */
static int take_words(lua_State *L, rl_core *self, int at, int first)
{
    int count = at + lua_gettop(L) + 1 - first;
    int i;

    for (i = at; i < count; i++, first++)
        self->argv[i] = lua_tolstring(L, first, &self->lengths[i]);
    return count;
}

static int refuse_call(lua_State *L, const rl_conn *conn, int err)
{
    switch (err) {
    case UV_ENOTCONN:
        return rl_refuse(L, "closed", rl_conn_detail(conn));
    case UV_EINVAL:
        return rl_refuse(L, "usage", "not a command for this connection");
    default:
        return rl_no_memory(L);
    }
}

/* Sends the first `count` words of core->argv. */
static int send_words(lua_State *L, rl_handle *self, int count)
{
    lua_Integer id = rl_check_id(L, 2);
    uint64_t ms = rl_check_ms(L, 3);
    int err;

    if (self->resource == NULL)
        return rl_refuse(L, "closed", CLOSED);
    err = rl_conn_call(self->resource, id, ms, count, self->core->argv,
                       self->core->lengths);
    return err == 0 ? rl_push_true(L) : refuse_call(L, self->resource, err);
}

enum { MAX_WORDS = 1 << 20 };

/* conn:call(id, ms, words, count) -> true | nil, code, detail */
static int conn_call(lua_State *L)
{
    enum { WORDS = 4, COUNT = 5 };
    rl_handle *self = check_handle(L, CONN);
    lua_Integer count = luaL_checkinteger(L, COUNT);
    int first = lua_gettop(L) + 1;

    luaL_checktype(L, WORDS, LUA_TTABLE);
    luaL_argcheck(L, count > 0 && count <= MAX_WORDS, COUNT,
                  "not a count of words");
    push_words(L, WORDS, (int)count);
    core_reserve(L, self->core, (int)count);
    return send_words(L, self, take_words(L, self->core, 0, first));
}

/* The length of a table of words. */
static int count_words(lua_State *L, int table)
{
    lua_Unsigned n;

    luaL_checktype(L, table, LUA_TTABLE);
    n = lua_rawlen(L, table);
    luaL_argcheck(L, n <= MAX_WORDS, table, "too many words");
    return (int)n;
}

/*
 * conn:eval(id, ms, sha, keys, a, b, c, d, extra) -> true | nil, code, detail
 * EVALSHA with these keys, the arguments a to d up to the first nil, and those
 * of the optional table `extra`.
 */
static int conn_eval(lua_State *L)
{
    enum { SHA = 4, KEYS, FIRST, EXTRA = FIRST + 4, HEAD = 3 };
    rl_handle *self = check_handle(L, CONN);
    rl_core *core = self->core;
    int keys = count_words(L, KEYS), i;
    char number[16];

    lua_settop(L, EXTRA);
    luaL_checktype(L, SHA, LUA_TSTRING);
    push_words(L, KEYS, keys);
    for (i = FIRST; i < EXTRA && lua_toboolean(L, i); i++) {
        lua_pushvalue(L, i);
        if (lua_type(L, -1) != LUA_TSTRING)
            to_string(L, lua_gettop(L));
    }
    if (!lua_isnil(L, EXTRA))
        push_words(L, EXTRA, count_words(L, EXTRA));
    core_reserve(L, core, HEAD + lua_gettop(L) - EXTRA);
    core->argv[0] = "EVALSHA";
    core->lengths[0] = strlen(core->argv[0]);
    core->argv[1] = lua_tolstring(L, SHA, &core->lengths[1]);
    core->argv[2] = number;
    core->lengths[2] = (size_t)snprintf(number, sizeof(number), "%d", keys);
    return send_words(L, self, take_words(L, core, HEAD, EXTRA + 1));
}

/*
 * conn:listen(verb, channel) -> true | nil, code, detail
 * The verbs are those of rl_conn_listen.
 */
static int conn_listen(lua_State *L)
{
    static const char *const verbs[] = { "subscribe", "unsubscribe",
                                         "ssubscribe", "sunsubscribe", NULL };
    rl_handle *self = check_handle(L, CONN);
    const char *verb = verbs[luaL_checkoption(L, 2, NULL, verbs)];
    size_t length;
    const char *channel = luaL_checklstring(L, 3, &length);
    int err;

    if (self->resource == NULL)
        return rl_refuse(L, "closed", CLOSED);
    err = rl_conn_listen(self->resource, verb, channel, length);
    return err == 0 ? rl_push_true(L) : refuse_call(L, self->resource, err);
}

static size_t pending_of(const rl_handle *self)
{
    return self->resource != NULL ? rl_conn_pending(self->resource) : 0;
}

/*
 * conn:close() -> { id, ... }: the calls that will never complete. Making the
 * table may run a finalizer that closes this very connection.
 */
static int conn_close(lua_State *L)
{
    rl_handle *self = check_handle(L, CONN);
    lua_Integer n = 0;
    size_t i;

    lua_createtable(L, (int)pending_of(self), 0);
    for (i = 0; i < pending_of(self); i++) {
        int64_t id = rl_conn_pending_id(self->resource, i);

        if (id == 0)
            continue;
        lua_pushinteger(L, (lua_Integer)id);
        lua_rawseti(L, -2, ++n);
    }
    rl_handle_release(self);
    return 1;
}

/* ---- connections of frames ---- */

static void close_frames(void *resource)
{
    rl_frames_close(resource);
}

/* core.frames(id, options) -> frames | nil, code, detail */
static int core_frames(lua_State *L)
{
    rl_core *self = rl_core_of(L);
    lua_Integer id = rl_check_id(L, 1);
    rl_tls_options tls = { 0 };
    rl_frames_options options = { 0 };
    char why[RL_DETAIL];
    rl_handle *new;
    rl_frames *frames = NULL;
    int err;

    lua_settop(L, 2);
    options.lost = get_dial_options(L, 2, &options.to, &tls);
    options.limit = (size_t)rl_opt_integer(L, 2, "limit", INT32_MAX);
    options.frame = rl_opt_integer(L, 2, "frame", LUA_MAXINTEGER);
    if (options.frame == 0)
        luaL_argerror(L, 2, "frame expected");
    new = rl_handle_new(L, self, FRAMES, close_frames);
    err = rl_frames_open(&frames, self->loop, id, &options, why);
    new->resource = frames;
    return err == 0 ? 1 : rl_refuse(L, "connect", why);
}

/* frames:send(bytes) -> true | nil, code, detail */
static int frames_send(lua_State *L)
{
    rl_handle *self = check_handle(L, FRAMES);
    size_t length;
    const char *bytes = luaL_checklstring(L, 2, &length);
    int err;

    if (self->resource == NULL)
        return rl_refuse(L, "closed", CLOSED);
    err = rl_frames_send(self->resource, bytes, length);
    if (err == 0)
        return rl_push_true(L);
    if (err == UV_ENOTCONN)
        return rl_refuse(L, "closed", rl_frames_detail(self->resource));
    return rl_no_memory(L);
}

/* frames:address() -> the IP address of our end | nil */
static int frames_address(lua_State *L)
{
    rl_handle *self = check_handle(L, FRAMES);
    char text[RL_ADDRESS];

    if (self->resource == NULL || rl_frames_address(self->resource, text) != 0)
        luaL_pushfail(L);
    else
        lua_pushstring(L, text);
    return 1;
}

/* frames:close() -> the id that will never complete | nil */
static int frames_close(lua_State *L)
{
    rl_handle *self = check_handle(L, FRAMES);
    int64_t id = 0;

    if (self->resource != NULL)
        id = rl_frames_pending(self->resource);
    rl_handle_release(self);
    if (id == 0)
        luaL_pushfail(L);
    else
        lua_pushinteger(L, (lua_Integer)id);
    return 1;
}

void rl_core_add_conn(lua_State *L)
{
    static const luaL_Reg conn[] = {
        { "call", conn_call },
        { "eval", conn_eval },
        { "listen", conn_listen },
        { "close", conn_close },
        { NULL, NULL },
    };
    static const luaL_Reg frames[] = {
        { "send", frames_send },
        { "address", frames_address },
        { "close", frames_close },
        { NULL, NULL },
    };
    static const luaL_Reg functions[] = {
        { "connect", core_connect },
        { "frames", core_frames },
        { NULL, NULL },
    };

    rl_handle_class(L, CONN, conn);
    rl_handle_class(L, FRAMES, frames);
    rl_core_add(L, functions);
}
