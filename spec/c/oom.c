/*
 * Out of memory in Lua, at any point of a run.
 *
 *     oom [RUNS]
 *
 * Runs the same programs repeatedly, each time with an allocator whose limit is
 * a few bytes higher, from nothing up to what a whole run takes. A run may fail
 * as long as it ends, frees all memory and closes its loop (core.c asserts
 * that). Meant for a build with sanitizers, which detect the rest. To fail a
 * single allocation finds almost nothing, because Lua collects garbage and
 * retries.
 */
#define main rlockctl_main
#include "main.c"
#undef main

#include "check.h"

/* A program that uses only the core. */
static const char core_program[] =
    "local core, path = require 'rlock.core', ...\n"
    "local ids, last = {}, 0\n"
    "local function new(fn) last = last + 1 ids[last] = fn return last end\n"
    "core.dispatch(function(id, ...) ids[id](...) end)\n"
    "local conn, sub, timer, child\n"
    "local left = 9\n"
    "local function done()\n"
    "  left = left - 1\n"
    "  if left == 0 then core.stop() end\n"
    "end\n"
    "local lost = new(error)\n"
    "local function call(id, ms, ...)\n"
    "  return conn:call(id, ms, { ... }, select('#', ...))\n"
    "end\n"
    "conn = assert(core.connect(new(function(ok, code, detail)\n"
    "  assert(ok, detail)\n"
    "  call(new(done), 1000, 'SET', 'a', 12, 'PX', 1e5 // 1 | 0)\n"
    "  call(new(done), 1000, 'NOSUCH', 1.5)\n"
    "  call(new(done), 1000, 'ECHO', ('x'):rep(5000))\n"
    "  call(new(done), 1000, 'EVAL',\n"
    "            'return {1,{2,{\"x\",\"y\"},3}}', 0)\n"
    "  call(new(function(_, code) assert(code == 'timeout') done() end),\n"
    "            1, 'BLPOP', 'none', 0.05)\n"
    "end), { path = path, timeout = 5000, lost = lost }))\n"
    "sub = assert(core.connect(new(function(ok, code, detail)\n"
    "  assert(ok, detail)\n"
    "  assert(sub:listen('subscribe', 'channel'))\n"
    "end), { path = path, message = new(done) }))\n"
    "assert(core.connect(new(error), { path = path }))\n"
    "for i = 1, 20 do core.timer(new(error), 100000 + i) end\n"
    "timer = core.timer(new(done), 1)\n"
    "local never = core.connect(new(done), { path = '/no/such' })\n"
    "local signal = core.signal(new(error), 'USR2')\n"
    "child = assert(core.spawn(new(done), { file = 'true',\n"
    "  args = { 'a', 'b' }, env = { 'A=b' } }))\n"
    "collectgarbage()\n"
    "assert(core.run())\n"
    "local rest = call(new(error), 0, 'PING') and conn:close()\n"
    "assert(#rest == 1)\n"
    "assert(#core.random(20) == 20)\n"
    "assert(core.flock(path .. '.lock')):close()\n";

/* A program that uses all of rlock. */
static const char rlock_program[] =
    "local rlock = require 'rlock'\n"
    "local client = assert(rlock.open('unix://' .. arg[1]))\n"
    /* Its own name: one that runs out of memory while it holds a lock may leave
       that until its lease ends. */
    "local lock = client:lock('oom' .. math.random(0))\n"
    "assert(lock:lock())\n"
    "assert(lock:unlock())\n"
    "client:close()\n";

struct budget {
    size_t used, peak, limit;
};

static void *allocate(void *ud, void *block, size_t old, size_t size)
{
    struct budget *budget = ud;
    size_t was = block != NULL ? old : 0;
    void *new_block;

    if (size > was && budget->used - was + size > budget->limit)
        return NULL;
    if (size == 0) {
        free(block);
        new_block = NULL;
    } else {
        new_block = realloc(block, size);
        if (new_block == NULL)
            return NULL;
    }
    budget->used += size - was;
    if (budget->used > budget->peak)
        budget->peak = budget->used;
    return new_block;
}

static int protected_core(lua_State *L)
{
    const char *path = lua_touserdata(L, 1);

    luaL_openlibs(L);
    preload(L);
    if (luaL_loadstring(L, core_program) != LUA_OK)
        return lua_error(L);
    lua_pushstring(L, path);
    lua_call(L, 1, 0);
    return 0;
}

/* Each runs one of the programs and returns its exit status. */
static int run_core(lua_State *L, const char *path)
{
    int status;

    if (L == NULL)
        return EXIT_FAILURE;
    lua_pushcfunction(L, protected_core);
    lua_pushlightuserdata(L, (void *)(uintptr_t)path);
    status = lua_pcall(L, 1, 0, 0);
    if (status != LUA_OK)
        fprintf(stderr, "%s\n", lua_tostring(L, -1));
    lua_close(L);
    return status == LUA_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

static int run_rlock(lua_State *L, const char *path)
{
    const char *values[] = { "rlockctl", "-e", rlock_program, path, NULL };
    struct arguments args = { 4, (char **)(uintptr_t)values, EXIT_SUCCESS };

    return run(L, &args);
}

typedef int program(lua_State *L, const char *path);

/* Runs it within this budget. A hang is a failure. */
static int run_within(program *run_it, const char *path, struct budget *budget)
{
    int status;

    alarm(60);
    status = run_it(lua_newstate(allocate, budget), path);
    alarm(0);
    return status;
}

static void sweep(program *run_it, const char *path, size_t runs)
{
    struct budget whole = { 0, 0, SIZE_MAX };
    size_t limit, step, failed = 0, wrong = 0;

    CHECK(run_within(run_it, path, &whole) == EXIT_SUCCESS);
    CHECK(whole.used == 0);
    step = whole.peak / runs + 1;
    for (limit = 0; limit <= whole.peak; limit += step) {
        struct budget budget = { 0, 0, limit };

        failed += run_within(run_it, path, &budget) != EXIT_SUCCESS;
        wrong += budget.used != 0 || rl_core_lingers();
    }
    CHECK(wrong == 0);
    CHECK(failed > runs / 4);
    printf("%zu bytes, step %zu: %zu of %zu runs refused\n", whole.peak, step,
           failed, limit / step);
}

static const char *path;
static size_t runs = 500;

static void the_core_survives_any_lack_of_memory(void)
{
    sweep(run_core, path, runs);
}

static void rlock_survives_any_lack_of_memory(void)
{
    sweep(run_rlock, path, runs);
}

int main(int argc, char **argv)
{
    int errors = dup(2), nowhere = open("/dev/null", O_WRONLY);
    pid_t redis;

    if (argc > 1)
        runs = (size_t)atol(argv[1]);
    path = in_folder("redis");
    redis = start_redis(path);
    if (getenv("V") == NULL)
        dup2(nowhere, 2); /* hundreds of "not enough memory" */
    RUN(the_core_survives_any_lack_of_memory);
    RUN(rlock_survives_any_lack_of_memory);
    dup2(errors, 2);
    close(errors);
    close(nowhere);
    finish(redis);
    return check_end();
}
