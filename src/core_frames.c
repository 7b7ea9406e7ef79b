/*
 * The part of rlock.core for connections of frames.
 */
#include "border.h"

#include "frames.h"

#define FRAMES "rlock.core.frames"

static void close_frames(void *resource)
{
    rl_frames_close(resource);
}

/* The strings that the options point to stay on the stack. */
static void get_options(lua_State *L, int table, rl_frames_options *to,
                        rl_tls_options *tls)
{
    luaL_checktype(L, table, LUA_TTABLE);
    to->host = rl_opt_string(L, table, "host");
    to->port = (int)rl_opt_integer(L, table, "port", 65535);
    to->timeout = (uint64_t)rl_opt_integer(L, table, "timeout", RL_MAX_MS);
    to->limit = (size_t)rl_opt_integer(L, table, "limit", INT32_MAX);
    to->lost = rl_opt_integer(L, table, "lost", LUA_MAXINTEGER);
    to->frame = rl_opt_integer(L, table, "frame", LUA_MAXINTEGER);
    if (to->host == NULL || to->port == 0)
        luaL_argerror(L, table, "host and port expected");
    if (to->limit == 0 || to->frame == 0)
        luaL_argerror(L, table, "limit and frame expected");
    to->tls = rl_opt_tls(L, table, tls);
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
    get_options(L, 2, &options, &tls);
    new = rl_handle_new(L, self, FRAMES, close_frames);
    err = rl_frames_open(&frames, self->loop, id, &options, why);
    new->resource = frames;
    return err == 0 ? 1 : rl_refuse(L, "connect", why);
}

static rl_handle *check_frames(lua_State *L)
{
    rl_handle *self = luaL_checkudata(L, 1, FRAMES);

    if (self->core->loop == NULL)
        luaL_error(L, "rlock.core is closed");
    return self;
}

/* frames:send(bytes) -> true | nil, code, detail */
static int frames_send(lua_State *L)
{
    rl_handle *self = check_frames(L);
    size_t length;
    const char *bytes = luaL_checklstring(L, 2, &length);
    int err;

    if (self->resource == NULL)
        return rl_refuse(L, "closed", "the connection was closed");
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
    rl_handle *self = check_frames(L);
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
    rl_handle *self = check_frames(L);
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

void rl_core_add_frames(lua_State *L)
{
    static const luaL_Reg frames[] = {
        { "send", frames_send },
        { "address", frames_address },
        { "close", frames_close },
        { NULL, NULL },
    };
    static const luaL_Reg functions[] = {
        { "frames", core_frames },
        { NULL, NULL },
    };

    rl_handle_class(L, FRAMES, frames);
    rl_core_add(L, functions);
}
