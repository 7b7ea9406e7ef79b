/*
 * Commands, encoded in the Redis protocol. hiredis has an encoder, but it
 * allocates on each call.
 */
#include "command.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    KEPT = 4096, /* bytes kept for the next command */
    NUMBER = 32  /* more than "$<size_t>\r\n" and "\r\n" need */
};

static int reserve(rl_command *self, size_t room)
{
    size_t size = room < KEPT ? KEPT : room;
    char *text;

    if (size == self->size)
        return 0;
    text = realloc(self->text, size);
    if (text == NULL)
        return -1;
    self->text = text;
    self->size = size;
    return 0;
}

static size_t width_of(size_t number)
{
    size_t width = 1;

    while (number >= 10) {
        number /= 10;
        width++;
    }
    return width;
}

static char *put_number(char *to, char mark, size_t number)
{
    size_t width = width_of(number);
    size_t i;

    *to++ = mark;
    for (i = width; i > 0; i--) {
        to[i - 1] = (char)('0' + number % 10);
        number /= 10;
    }
    to += width;
    *to++ = '\r';
    *to++ = '\n';
    return to;
}

int rl_command_set(rl_command *self, int argc, const char *const *argv,
                   const size_t *length)
{
    size_t room = NUMBER;
    char *to;
    int i;

    for (i = 0; i < argc; i++)
        room += length[i] + NUMBER;
    if (reserve(self, room) != 0)
        return -1;
    to = put_number(self->text, '*', (size_t)argc);
    for (i = 0; i < argc; i++) {
        to = put_number(to, '$', length[i]);
        memcpy(to, argv[i], length[i]);
        to += length[i];
        *to++ = '\r';
        *to++ = '\n';
    }
    *to = '\0';
    self->length = (size_t)(to - self->text);
    return 0;
}

static int is_word(const char *text, size_t length, const char *word)
{
    return length == strlen(word) && strncasecmp(text, word, length) == 0;
}

int rl_command_has_one_reply(int argc, const char *const *argv,
                             const size_t *length)
{
    static const char *const words[] = { "subscribe", "unsubscribe", "monitor",
                                         "sync" };
    const char *name = argv[0];
    size_t skip = length[0] > 0 && strchr("pPsS", name[0]) != NULL;
    size_t i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (is_word(name, length[0], words[i])
            || is_word(name + skip, length[0] - skip, words[i]))
            return 0;
    return argc < 2 || !is_word(name, length[0], "client")
           || !is_word(argv[1], length[1], "reply");
}

void rl_command_free(rl_command *self)
{
    free(self->text);
    memset(self, 0, sizeof(*self));
}
