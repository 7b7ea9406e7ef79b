/*
 * The part of rlock.core for HTTP.
 */
#include "border.h"

#include "serve.h"

#define SERVER "rlock.core.server"

static void close_server(void *resource)
{
    rl_server_close(resource);
}

/* core.serve(id, port) -> server | nil, code, detail */
static int core_serve(lua_State *L)
{
    rl_core *self = rl_core_of(L);
    lua_Integer id = rl_check_id(L, 1), port = luaL_checkinteger(L, 2);
    rl_handle *new = rl_handle_new(L, self, SERVER, close_server);
    rl_server *server = NULL;
    int err;

    luaL_argcheck(L, port > 0 && port < 65536, 2, "port out of range");
    err = rl_server_open(&server, self->loop, id, (int)port);
    new->resource = server;
    return err == 0 ? 1 : rl_refuse_uv(L, "refused", err);
}

/* server:answer(response), in the dispatcher -> true | nil, code, detail */
static int server_answer(lua_State *L)
{
    rl_server *server = rl_handle_resource(luaL_checkudata(L, 1, SERVER));
    size_t length;
    const char *text = luaL_checklstring(L, 2, &length);
    int err = UV_EINVAL;

    if (server != NULL)
        err = rl_server_answer(server, text, length);
    return err == 0 ? rl_push_true(L) : rl_refuse_uv(L, "refused", err);
}

void rl_core_add_http(lua_State *L)
{
    static const luaL_Reg server[] = {
        { "answer", server_answer },
        { NULL, NULL },
    };
    static const luaL_Reg functions[] = {
        { "serve", core_serve },
        { NULL, NULL },
    };

    rl_handle_class(L, SERVER, server);
    rl_core_add(L, functions);
}
