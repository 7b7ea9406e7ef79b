/*
 * The Lua module rlock.screen, over ncursesw. It never waits: Lua calls key
 * when the terminal is readable. There is one screen at a time. The terminal is
 * restored by close, by __gc, and by exit.
 */
#define _XOPEN_SOURCE 700 /* wcwidth */
#define NCURSES_WIDECHAR 1
#include "screen.h"

#ifdef RL_SCREEN

#include <curses.h>
#include <lauxlib.h>
#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <term.h>
#include <unistd.h>
#include <wchar.h>

#include "class.h"
#include "input.h"

#define CLASS "rlock.screen"
enum { MOST_COLUMNS = 512, MOST_CHARACTERS = 2 * MOST_COLUMNS };
enum { ESCAPE_MS = 25 }; /* an Escape without more within this is the key */

typedef struct screen {
    SCREEN *curses;
    WINDOW *keys; /* where keys are read: reading from stdscr refreshes it */
} screen;

static screen *opened;

static void restore(void)
{
    if (opened != NULL)
        endwin();
}

static screen *check_screen(lua_State *L)
{
    screen *self = luaL_checkudata(L, 1, CLASS);

    if (self->curses == NULL)
        luaL_error(L, "the screen is closed");
    return self;
}

static int screen_close(lua_State *L)
{
    screen *self = luaL_checkudata(L, 1, CLASS);

    if (self->curses != NULL) {
        endwin();
        delwin(self->keys);
        delscreen(self->curses);
        setlocale(LC_CTYPE, "C");
        opened = NULL;
    }
    self->curses = NULL;
    return 0;
}

/* Does terminfo describe this terminal, and can its cursor be moved? */
static int is_able(void)
{
    int err, moves;

    if (setupterm(NULL, STDOUT_FILENO, &err) != OK)
        return 0;
    moves = cursor_address != NULL;
    del_curterm(cur_term);
    return moves;
}

static int set_up(screen *self)
{
    self->keys = newpad(1, 1);
    if (self->keys == NULL)
        return ERR;
    cbreak();
    noecho();
    nonl();
    curs_set(0);
    set_escdelay(ESCAPE_MS);
    keypad(self->keys, TRUE);
    return nodelay(self->keys, TRUE);
}

/* screen.open() -> screen | nil: there is no terminal, or no terminfo */
static int screen_open(lua_State *L)
{
    static int has_exit;
    screen *self = lua_newuserdatauv(L, sizeof(*self), 0);

    memset(self, 0, sizeof(*self));
    luaL_setmetatable(L, CLASS);
    if (opened != NULL || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)
        || !is_able())
        return 0;
    setlocale(LC_CTYPE, "");
    self->curses = newterm(NULL, stdout, stdin);
    if (self->curses == NULL)
        return 0;
    opened = self;
    if (!has_exit && atexit(restore) == 0)
        has_exit = 1;
    if (set_up(self) == ERR)
        return luaL_error(L, "not enough memory");
    return 1;
}

/* screen:size() -> rows, columns */
static int screen_size(lua_State *L)
{
    check_screen(L);
    lua_pushinteger(L, getmaxy(stdscr));
    lua_pushinteger(L, getmaxx(stdscr));
    return 2;
}

/* Some formatting characters move the text after them. */
static int is_shown(wchar_t one)
{
    return wcwidth(one) >= 0 && !(one >= 0x200B && one <= 0x200F)
           && !(one >= 0x2028 && one <= 0x202E)
           && !(one >= 0x2060 && one <= 0x206F) && one != 0xFEFF;
}

/* Reads a character of text, or a question mark for one that cannot be shown.
   Returns its length in bytes. */
static size_t read_one(wchar_t *one, const char *text, size_t length)
{
    mbstate_t state;
    size_t used;

    memset(&state, 0, sizeof(state));
    used = mbrtowc(one, text, length, &state);
    if (used == 0 || used > length) {
        *one = L'?';
        return 1;
    }
    if (!is_shown(*one))
        *one = L'?';
    return used;
}

/* Converts the text to exactly width columns: pads it with blanks, or cuts it
   and ends it with a ~. */
static void fit(wchar_t *out, const char *text, size_t length, int width)
{
    int count = 0, used = 0;

    while (length > 0 && count < MOST_CHARACTERS) {
        size_t bytes = read_one(&out[count], text, length);

        used += wcwidth(out[count++]);
        text += bytes;
        length -= bytes;
    }
    if (used > width) {
        while (used > width - 1)
            used -= wcwidth(out[--count]);
        out[count++] = L'~';
        used++;
    }
    for (; used < width; used++)
        out[count++] = L' ';
    out[count] = L'\0';
}

static attr_t check_attribute(lua_State *L, int index)
{
    static const char *const names[] = { "plain", "bold", "dim", "reverse",
                                         NULL };
    static const attr_t attributes[] = { A_NORMAL, A_BOLD, A_DIM, A_REVERSE };

    return attributes[luaL_checkoption(L, index, "plain", names)];
}

/* screen:put(row, column, width, text [, attribute]): fills width columns;
   row and column begin at 0 */
static int screen_put(lua_State *L)
{
    wchar_t line[MOST_CHARACTERS + MOST_COLUMNS + 1];
    int row, column, width;
    const char *text;
    size_t length;

    check_screen(L);
    row = (int)luaL_checkinteger(L, 2);
    column = (int)luaL_checkinteger(L, 3);
    width = (int)luaL_checkinteger(L, 4);
    text = luaL_checklstring(L, 5, &length);
    if (width > getmaxx(stdscr) - column)
        width = getmaxx(stdscr) - column;
    if (width <= 0 || row < 0 || column < 0 || row >= getmaxy(stdscr))
        return 0;
    fit(line, text, length, width < MOST_COLUMNS ? width : MOST_COLUMNS);
    attr_set(check_attribute(L, 6), 0, NULL);
    mvaddwstr(row, column, line);
    return 0;
}

/* screen:erase(): clears the screen, at the next refresh */
static int screen_erase(lua_State *L)
{
    check_screen(L);
    attrset(A_NORMAL);
    erase();
    return 0;
}

/* screen:refresh(): shows the changes */
static int screen_refresh(lua_State *L)
{
    check_screen(L);
    wnoutrefresh(stdscr);
    doupdate();
    return 0;
}

static void follow_size(void)
{
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0
        && size.ws_col > 0)
        resizeterm(size.ws_row, size.ws_col);
}

/* screen:renew(): redraws everything at the next refresh, in the current size
   of the terminal */
static int screen_renew(lua_State *L)
{
    check_screen(L);
    follow_size();
    clearok(curscr, TRUE);
    return 0;
}

/* screen:suspend(): restores the terminal and stops the process; returns
   when it continues */
static int screen_suspend(lua_State *L)
{
    struct sigaction stop, before;

    check_screen(L);
    memset(&stop, 0, sizeof(stop));
    stop.sa_handler = SIG_DFL;
    endwin();
    sigaction(SIGTSTP, &stop, &before);
    raise(SIGTSTP);
    sigaction(SIGTSTP, &before, NULL);
    return screen_renew(L);
}

static const struct named {
    int what;
    wint_t key;
    const char *name;
} keys[] = {
    { KEY_CODE_YES, KEY_UP, "up" },
    { KEY_CODE_YES, KEY_DOWN, "down" },
    { KEY_CODE_YES, KEY_PPAGE, "page up" },
    { KEY_CODE_YES, KEY_NPAGE, "page down" },
    { KEY_CODE_YES, KEY_HOME, "home" },
    { KEY_CODE_YES, KEY_END, "end" },
    { KEY_CODE_YES, KEY_ENTER, "enter" },
    { KEY_CODE_YES, KEY_BACKSPACE, "backspace" },
    { OK, '\r', "enter" },
    { OK, '\n', "enter" },
    { OK, '\b', "backspace" },
    { OK, 127, "backspace" },
    { OK, 27, "escape" },
};

/* NULL: it is a character. */
static const char *name_of(int what, wint_t key)
{
    size_t i;

    for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i].what == what && keys[i].key == key)
            return keys[i].name;
    return what == KEY_CODE_YES || key < ' ' ? "other" : NULL;
}

static int push_text(lua_State *L, wint_t key)
{
    char text[MB_LEN_MAX];
    mbstate_t state;
    size_t length;

    memset(&state, 0, sizeof(state));
    length = wcrtomb(text, (wchar_t)key, &state);
    if (length == (size_t)-1)
        lua_pushliteral(L, "?");
    else
        lua_pushlstring(L, text, length);
    return 1;
}

/* screen:key() -> nil: no key is pressed; "up", "down", "page up", "page down",
   "home", "end", "enter", "backspace", "escape", "other"; "gone": the
   terminal has hung up; or one character as text */
static int screen_key(lua_State *L)
{
    wint_t key = 0;
    int what = wget_wch(check_screen(L)->keys, &key);
    const char *name;

    if (what == ERR && !rl_input_has_gone(STDIN_FILENO))
        return 0;
    name = what == ERR ? "gone" : name_of(what, key);
    if (name == NULL)
        return push_text(L, key);
    lua_pushstring(L, name);
    return 1;
}

int luaopen_rlock_screen(lua_State *L)
{
    static const luaL_Reg functions[] = { { "open", screen_open },
                                          { NULL, NULL } };
    static const luaL_Reg methods[] = {
        { "size", screen_size },   { "put", screen_put },
        { "erase", screen_erase }, { "refresh", screen_refresh },
        { "renew", screen_renew }, { "suspend", screen_suspend },
        { "key", screen_key },     { NULL, NULL },
    };

    rl_class(L, CLASS, methods, screen_close);
    luaL_newlib(L, functions);
    return 1;
}

#endif
