/*
 * The Lua module rlock.edit, over libedit. It never blocks: Lua calls read when
 * the terminal is readable. libedit never calls Lua: the Tab key only sets a
 * flag.
 */
#include "edit.h"

#ifdef RL_EDIT

#include <fcntl.h>
#include <histedit.h>
#include <lauxlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "class.h"
#include "input.h"

#define EDITOR "rlock.edit"
enum { HISTORY = 1000 }; /* lines */
enum { PROMPT_SIZE = 32 };

typedef struct editor {
    EditLine *line;
    History *history;
    char prompt[PROMPT_SIZE];
    int completes; /* Tab has been pressed */
} editor;

static editor *check_editor(lua_State *L)
{
    editor *self = luaL_checkudata(L, 1, EDITOR);

    if (self->line == NULL)
        luaL_error(L, "the editor is closed");
    return self;
}

static editor *editor_of(EditLine *line)
{
    void *self = NULL;

    el_get(line, EL_CLIENTDATA, &self);
    return self;
}

static char *get_prompt(EditLine *line)
{
    return editor_of(line)->prompt;
}

static unsigned char on_tab(EditLine *line, int key)
{
    (void)key;
    editor_of(line)->completes = 1;
    return CC_NORM;
}

static int editor_close(lua_State *L)
{
    editor *self = luaL_checkudata(L, 1, EDITOR);

    if (self->line != NULL)
        el_end(self->line);
    if (self->history != NULL)
        history_end(self->history);
    self->line = NULL;
    self->history = NULL;
    return 0;
}

/* libedit never frees the name of a function. */
static void add_completion(EditLine *line)
{
#ifdef __SANITIZE_ADDRESS__
    __lsan_disable();
#endif
    el_set(line, EL_ADDFN, "rlock-complete", "complete a name", on_tab);
#ifdef __SANITIZE_ADDRESS__
    __lsan_enable();
#endif
    el_set(line, EL_BIND, "^I", "rlock-complete", NULL);
}

static void set_up(editor *self)
{
    HistEvent event;

    history(self->history, &event, H_SETSIZE, HISTORY);
    history(self->history, &event, H_SETUNIQUE, 1);
    el_set(self->line, EL_CLIENTDATA, self);
    el_set(self->line, EL_PROMPT, get_prompt);
    el_set(self->line, EL_EDITOR, "emacs");
    el_set(self->line, EL_SIGNAL, 0);
    el_set(self->line, EL_HIST, history, self->history);
    add_completion(self->line);
    el_set(self->line, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(self->line, NULL);
}

/* edit.open() -> editor | nil; reads the user's ~/.editrc */
static int edit_open(lua_State *L)
{
    editor *self = lua_newuserdatauv(L, sizeof(*self), 0);

    memset(self, 0, sizeof(*self));
    luaL_setmetatable(L, EDITOR);
    self->history = history_init();
    self->line = el_init("rlockctl", stdin, stdout, stderr);
    if (self->line == NULL || self->history == NULL)
        return 0;
    set_up(self);
    return 1;
}

/* editor:start(prompt): shows it; from now on the terminal is in raw mode */
static int editor_start(lua_State *L)
{
    editor *self = check_editor(L);

    snprintf(self->prompt, PROMPT_SIZE, "%s", luaL_checkstring(L, 2));
    el_set(self->line, EL_UNBUFFERED, 1);
    return 0;
}

/* editor:stop(): restores the terminal and discards the line */
static int editor_stop(lua_State *L)
{
    el_set(check_editor(L)->line, EL_UNBUFFERED, 0);
    return 0;
}

static int push_text_before(lua_State *L, EditLine *line)
{
    const LineInfo *info = el_line(line);

    lua_pushliteral(L, "complete");
    lua_pushlstring(L, info->buffer, (size_t)(info->cursor - info->buffer));
    return 2;
}

/* Is this Ctrl-D, or has the terminal hung up? An empty line is neither. */
static int is_end(const char *text, int length)
{
    if (text == NULL || length <= 0)
        return rl_input_has_gone(STDIN_FILENO);
    return length == 1 && text[0] == '\4';
}

/* editor:read() -> what the key did: nil, or "line", its text; "complete", the
   text before the cursor; "end". Waits unless the terminal is readable. */
static int editor_read(lua_State *L)
{
    editor *self = check_editor(L);
    const char *text;
    int length = 0;

    self->completes = 0;
    text = el_gets(self->line, &length);
    if (self->completes)
        return push_text_before(L, self->line);
    if (is_end(text, length)) {
        lua_pushliteral(L, "end");
        return 1;
    }
    if (text == NULL || length <= 0
        || (text[length - 1] != '\n' && text[length - 1] != '\r'))
        return 0;
    lua_pushliteral(L, "line");
    lua_pushlstring(L, text, (size_t)length - 1);
    return 2;
}

/* editor:insert(text): as if typed; letters and digits only */
static int editor_insert(lua_State *L)
{
    editor *self = check_editor(L);
    size_t length;
    const char *text = luaL_checklstring(L, 2, &length);
    int ignored;

    el_push(self->line, text);
    while (length-- > 0)
        el_gets(self->line, &ignored);
    return 0;
}

/* editor:aside(text): prints whole lines above the line that is edited */
static int editor_aside(lua_State *L)
{
    editor *self = check_editor(L);
    size_t length;
    const char *text = luaL_checklstring(L, 2, &length);

    fputs("\r\033[K", stdout);
    fwrite(text, 1, length, stdout);
    fflush(stdout);
    el_set(self->line, EL_REFRESH);
    return 0;
}

/* editor:add(line): to the history */
static int editor_add(lua_State *L)
{
    editor *self = check_editor(L);
    HistEvent event;

    history(self->history, &event, H_ENTER, luaL_checkstring(L, 2));
    return 0;
}

/* editor:load(path): the history; a missing file is an empty one */
static int editor_load(lua_State *L)
{
    editor *self = check_editor(L);
    HistEvent event;

    history(self->history, &event, H_LOAD, luaL_checkstring(L, 2));
    return 0;
}

/* editor:save(path) -> true or false. Only its owner may read the file. */
static int editor_save(lua_State *L)
{
    editor *self = check_editor(L);
    const char *path = luaL_checkstring(L, 2);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    HistEvent event;
    int saved = 0;

    if (fd >= 0) {
        saved = fchmod(fd, 0600) == 0
                && history(self->history, &event, H_SAVE, path) >= 0;
        close(fd);
    }
    lua_pushboolean(L, saved);
    return 1;
}

int luaopen_rlock_edit(lua_State *L)
{
    static const luaL_Reg functions[] = { { "open", edit_open },
                                          { NULL, NULL } };
    static const luaL_Reg methods[] = {
        { "start", editor_start },
        { "stop", editor_stop },
        { "read", editor_read },
        { "insert", editor_insert },
        { "aside", editor_aside },
        { "add", editor_add },
        { "load", editor_load },
        { "save", editor_save },
        { NULL, NULL },
    };

    rl_class(L, EDITOR, methods, editor_close);
    luaL_newlib(L, functions);
    return 1;
}

#endif
