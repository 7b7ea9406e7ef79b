/*
 * rlockctl: builds the Lua state and hands over to lua/rlockctl/cli.lua.
 *
 * All work with Lua runs within one protected call. The modules linked into
 * this program come before those on package.path, so that it never loads
 * another version's modules by accident. Only the paths that the user names in
 * LUA_PATH or with --lua-path come before them.
 */
#include <fcntl.h>
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "allocator.h"
#include "edit.h"
#include "embed.h"
#include "screen.h"

extern const char lua_ident[];

struct arguments {
    int count;
    char **values;
    int status;
};

#define PREPARED "rlock/prepared/"

/* Stack slots of the protected main. */
enum { ARGUMENTS = 1, HANDLER, NAMED };

static int by_name(const void *name, const void *file)
{
    return strcmp(name, ((const struct rl_embedded *)file)->name);
}

static const struct rl_embedded *find(const char *name)
{
    return bsearch(name, rl_embedded, rl_embedded_count, sizeof(*rl_embedded),
                   by_name);
}

/* embedded(name) -> text | nil, for a name such as "rlock/policy/fair.lua" */
static int lua_embedded(lua_State *L)
{
    const struct rl_embedded *file = find(luaL_checkstring(L, 1));

    if (file == NULL || file->text == NULL)
        return 0;
    lua_pushlstring(L, file->text, file->length);
    return 1;
}

static const struct rl_embedded *find_module(lua_State *L, const char *module)
{
    const char *path = luaL_gsub(L, module, ".", "/");
    const struct rl_embedded *file = find(lua_pushfstring(L, "%s.lua", path));

    if (file == NULL)
        file = find(lua_pushfstring(L, "%s/init.lua", path));
    return file;
}

static int load_embedded(lua_State *L, const struct rl_embedded *file)
{
    const char *chunk = lua_pushfstring(L, "@%s", file->name);

    if (file->code != NULL && strcmp(lua_ident, rl_embedded_for) == 0)
        return luaL_loadbufferx(L, file->code, file->code_length, chunk, "b");
    return luaL_loadbufferx(L, file->text, file->length, chunk, "t");
}

/*
 * The scripts in rlock.prepared are those of our own modules: they are not used
 * in a program that replaces one of these.
 */
static int is_outdated(lua_State *L, const struct rl_embedded *file)
{
    if (strncmp(file->name, PREPARED, sizeof(PREPARED) - 1) != 0)
        return 0;
    lua_getfield(L, lua_upvalueindex(1), "is_mixed");
    return lua_toboolean(L, -1);
}

/* The file of module 1 on the user's path, or NULL. */
static const char *find_named(lua_State *L)
{
    lua_getfield(L, lua_upvalueindex(1), "search");
    lua_pushvalue(L, 1);
    lua_getfield(L, lua_upvalueindex(1), "path");
    lua_call(L, 2, 1);
    return lua_tostring(L, -1);
}

/* A package searcher: "rlock.client" is rlock/client.lua, or
 * rlock/client/init.lua. */
static int search(lua_State *L)
{
    const char *module = luaL_checkstring(L, 1);
    const struct rl_embedded *file = find_module(L, module);
    const char *name;
    int status;

    if (file == NULL || is_outdated(L, file)) {
        lua_pushfstring(L, "no embedded module '%s'", module);
        return 1;
    }
    name = find_named(L);
    status = name ? luaL_loadfile(L, name) : load_embedded(L, file);
    if (status != LUA_OK)
        return lua_error(L);
    if (name != NULL) {
        lua_pushboolean(L, 1);
        lua_setfield(L, lua_upvalueindex(1), "is_mixed");
    }
    lua_pushstring(L, name ? name : file->name);
    return 2;
}

/* Pushes { path = what LUA_PATH adds to the default, search = searchpath }. */
static void push_named(lua_State *L)
{
    lua_createtable(L, 0, 2);
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "searchpath");
    lua_setfield(L, -3, "search");
    lua_getfield(L, -1, "path");
    luaL_gsub(L, lua_tostring(L, -1), LUA_PATH_DEFAULT, "");
    lua_setfield(L, -4, "path");
    lua_pop(L, 2);
}

/* Inserts search after package.preload. Its upvalue is the table above. */
static void add_searcher(lua_State *L)
{
    int i;

    lua_getglobal(L, "package");
    lua_getfield(L, -1, "searchers");
    for (i = (int)lua_rawlen(L, -1); i > 1; i--) {
        lua_rawgeti(L, -1, i);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushvalue(L, NAMED);
    lua_pushcclosure(L, search, 1);
    lua_rawseti(L, -2, 2);
    lua_pop(L, 2);
}

static void preload(lua_State *L)
{
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    lua_pushcfunction(L, luaopen_rlock_core);
    lua_setfield(L, -2, "rlock.core");
#ifdef RL_EDIT
    lua_pushcfunction(L, luaopen_rlock_edit);
    lua_setfield(L, -2, "rlock.edit");
#endif
#ifdef RL_SCREEN
    lua_pushcfunction(L, luaopen_rlock_screen);
    lua_setfield(L, -2, "rlock.screen");
#endif
    lua_pop(L, 1);
}

static void push_arguments(lua_State *L, const struct arguments *args)
{
    int i;

    lua_createtable(L, args->count, 1);
    for (i = 0; i < args->count; i++) {
        lua_pushstring(L, args->values[i]);
        lua_rawseti(L, -2, i);
    }
}

/* Overwrites the passwords in URLs, because ps would show them. */
static void hide_passwords(const struct arguments *args)
{
    int i;

    for (i = 1; i < args->count; i++) {
        char *colon = strstr(args->values[i], "://");
        char *end = colon != NULL ? strrchr(colon, '@') : NULL;

        colon = end != NULL ? strchr(colon + 3, ':') : NULL;
        if (colon != NULL && colon < end)
            memset(colon + 1, '*', (size_t)(end - colon - 1));
    }
}

static int protected_main(lua_State *L)
{
    struct arguments *args = lua_touserdata(L, ARGUMENTS);

    luaL_checkversion(L);
    luaL_openlibs(L);
    preload(L);
    lua_pushcfunction(L, rl_traceback);
    push_named(L);
    add_searcher(L);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "rlockctl.cli");
    if (lua_pcall(L, 1, 1, HANDLER) != LUA_OK)
        return lua_error(L);
    lua_getfield(L, -1, "main");
    push_arguments(L, args);
    hide_passwords(args);
    lua_pushcfunction(L, lua_embedded);
    lua_pushvalue(L, NAMED);
    if (lua_pcall(L, 3, 1, HANDLER) != LUA_OK)
        return lua_error(L);
    args->status = (int)luaL_optinteger(L, -1, 0);
    return 0;
}

/* Runs the program in this state and closes the state. */
static int run(lua_State *L, struct arguments *args)
{
    if (L == NULL) {
        fputs("rlockctl: not enough memory\n", stderr);
        return EXIT_FAILURE;
    }
    lua_pushcfunction(L, protected_main);
    lua_pushlightuserdata(L, args);
    if (lua_pcall(L, 1, 0, 0) != LUA_OK) {
        const char *message = lua_tostring(L, -1);

        fprintf(stderr, "rlockctl: %s\n", message ? message : "(no message)");
        args->status = EXIT_FAILURE;
    }
    lua_close(L);
    return args->status;
}

/* The handler of warn(): prints after warn("@on"), in lua's format. */
static void show_warning(void *arg, const char *text, int goes_on)
{
    static int is_shown, is_inside;

    (void)arg;
    if (!is_inside && !goes_on && text[0] == '@') {
        is_shown =
            strcmp(text, "@on") == 0 || (is_shown && strcmp(text, "@off") != 0);
        return;
    }
    if (is_shown)
        fprintf(stderr, "%s%s%s", is_inside ? "" : "Lua warning: ", text,
                goes_on ? "" : "\n");
    is_inside = goes_on;
}

/* Opens descriptors 0 to 2 if closed: libuv needs that, and otherwise one of
   our sockets could become a program's standard output. */
static void open_standard_streams(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    struct arguments args = { argc, argv, EXIT_SUCCESS };
    rl_allocator *allocator = rl_allocator_open();
#ifdef __SANITIZE_ADDRESS__ /* ASan only tracks malloc's blocks */
    lua_State *L = luaL_newstate();
#else
    lua_State *L =
        allocator ? lua_newstate(rl_allocator_allocate, allocator) : NULL;
#endif
    int status;

    open_standard_streams();
    if (L != NULL)
        lua_setwarnf(L, show_warning, NULL);
    status = run(L, &args);
    rl_allocator_close(allocator);
    if (rl_core_lingers()) {
        fflush(NULL);
        _exit(status);
    }
    return status;
}
