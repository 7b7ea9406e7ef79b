/*
 * The part of rlock.core for signals, and for a task that never waits.
 */
#include "border.h"

#include <signal.h>

#include "signal.h"

#define SIGNAL "rlock.core.signal"

static const char *const signal_names[] = { "HUP",  "INT",  "QUIT",  "TERM",
                                            "USR1", "USR2", "WINCH", "CONT",
                                            "TSTP", "ALRM", "CHLD",  "KILL",
                                            "STOP", NULL };
static const int signal_numbers[] = { SIGHUP,  SIGINT,  SIGQUIT,  SIGTERM,
                                      SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT,
                                      SIGTSTP, SIGALRM, SIGCHLD,  SIGKILL,
                                      SIGSTOP };

int rl_check_signal(lua_State *L, int arg)
{
    return signal_numbers[luaL_checkoption(L, arg, NULL, signal_names)];
}

/* core.signals: name -> number */
static void push_signals(lua_State *L)
{
    int i;

    lua_newtable(L);
    for (i = 0; signal_names[i] != NULL; i++) {
        lua_pushinteger(L, signal_numbers[i]);
        lua_setfield(L, -2, signal_names[i]);
    }
}

static void close_signal(void *resource)
{
    rl_signal_close(resource);
}

/* core.signal(id, "INT") -> handle | nil, code, detail */
static int core_signal(lua_State *L)
{
    rl_core *self = rl_core_of(L);
    lua_Integer id = rl_check_id(L, 1);
    int number = rl_check_signal(L, 2);
    rl_handle *new = rl_handle_new(L, self, SIGNAL, close_signal);
    rl_signal *signal = NULL;
    int err = rl_signal_open(&signal, self->loop, id, number);

    new->resource = signal;
    return err == 0 ? 1 : rl_refuse_uv(L, "refused", err);
}

/* ---- interrupting a task that never waits ---- */

/*
 * The loop cannot report a signal while a task computes. So the signal handler
 * sets a debug hook in the running coroutine, as lua does. The hook lets
 * PATIENCE_MS pass, in case the task waits soon, and then calls the function
 * given to core.interrupt: fn(number), which may raise. If that returns, it is
 * called again after FEW_STEPS: a call after each step would make code that it
 * does not interrupt a thousand times slower. Every coroutine that is resumed
 * in the meantime gets the hook.
 */
enum { PATIENCE_MS = 100, STEPS = 1000, FEW_STEPS = 97 };
static lua_State *volatile active;
static const char INTERRUPT; /* its address is the function's key */

static void interrupt(lua_State *L, lua_Debug *where)
{
    int number = rl_signal_unreported(PATIENCE_MS);

    (void)where;
    if (rl_signal_unreported(0) == 0)
        lua_sethook(L, NULL, 0, 0);
    if (number == 0)
        return;
    lua_sethook(L, interrupt, LUA_MASKCOUNT, FEW_STEPS);
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &INTERRUPT) == LUA_TNIL) {
        lua_pop(L, 1);
        return;
    }
    lua_pushinteger(L, number);
    lua_call(L, 1, 0);
}

/* Runs in the signal handler. */
static void hook_running(void)
{
    if (active != NULL)
        lua_sethook(active, interrupt, LUA_MASKCOUNT, STEPS);
}

static void set_running(lua_State *L)
{
    active = L;
    if (L != NULL && rl_signal_unreported(0) != 0 && lua_gethook(L) == NULL)
        hook_running();
}

void rl_core_forget_running(void)
{
    active = NULL;
    rl_signal_on_ask(NULL);
}

/* core.interrupt(fn); nil removes it */
static int core_interrupt(lua_State *L)
{
    rl_core_of(L);
    lua_settop(L, 1);
    if (!lua_isnil(L, 1))
        luaL_checktype(L, 1, LUA_TFUNCTION);
    rl_signal_on_ask(lua_isnil(L, 1) ? NULL : hook_running);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &INTERRUPT);
    return 0;
}

static int resume_failed(lua_State *L, const char *message)
{
    lua_pushboolean(L, 0);
    lua_pushstring(L, message);
    return 2;
}

/* core.resume(co, ...): coroutine.resume that records the running coroutine */
static int core_resume(lua_State *L)
{
    lua_State *co = lua_tothread(L, 1), *resumer = active;
    int count = lua_gettop(L) - 1;
    int status;

    luaL_argexpected(L, co, 1, "coroutine");
    if (!lua_checkstack(co, count))
        return resume_failed(L, "too many arguments to resume");
    lua_xmove(L, co, count);
    set_running(co);
    status = lua_resume(co, L, count, &count);
    set_running(resumer);
    if (status != LUA_OK && status != LUA_YIELD)
        count = 1; /* the error */
    if (!lua_checkstack(L, count + 1)) {
        lua_pop(co, count);
        return resume_failed(L, "too many results to resume");
    }
    lua_xmove(co, L, count);
    lua_pushboolean(L, status == LUA_OK || status == LUA_YIELD);
    lua_insert(L, -(count + 1));
    return count + 1;
}

void rl_core_add_signal(lua_State *L)
{
    static const luaL_Reg functions[] = {
        { "signal", core_signal },
        { "interrupt", core_interrupt },
        { "resume", core_resume },
        { NULL, NULL },
    };

    rl_handle_class(L, SIGNAL, NULL);
    rl_core_add(L, functions);
    push_signals(L);
    lua_setfield(L, -2, "signals");
}
