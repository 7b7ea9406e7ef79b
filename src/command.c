/*
 * Commands, encoded in the Redis protocol into the buffer that is sent. hiredis
 * has an encoder, but it allocates on each call.
 */
#include "command.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    KEPT = 4096, /* bytes kept for the next commands */
    NUMBER = 32  /* more than "$<size_t>\r\n" and "\r\n" need */
};

static int reserve(rl_commands *self, size_t room)
{
    size_t size = self->size < KEPT ? KEPT : self->size;
    char *text;

    if (self->size - self->end >= room)
        return 0;
    self->end -= self->first;
    if (self->first > 0)
        memmove(self->text, self->text + self->first, self->end);
    self->first = 0;
    while (size - self->end < room)
        size *= 2;
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

int rl_commands_add(rl_commands *self, int argc, const char *const *argv,
                    const size_t *length)
{
    size_t room = NUMBER;
    char *to;
    int i;

    for (i = 0; i < argc; i++)
        room += length[i] + NUMBER;
    if (reserve(self, room) != 0)
        return -1;
    to = put_number(self->text + self->end, '*', (size_t)argc);
    for (i = 0; i < argc; i++) {
        to = put_number(to, '$', length[i]);
        memcpy(to, argv[i], length[i]);
        to += length[i];
        *to++ = '\r';
        *to++ = '\n';
    }
    self->end = (size_t)(to - self->text);
    return 0;
}

int rl_commands_add_frame(rl_commands *self, const char *bytes, size_t length)
{
    enum { HEAD = 4 };
    char *to;
    int i;

    if (length > INT32_MAX || reserve(self, HEAD + length) != 0)
        return -1;
    to = self->text + self->end;
    for (i = 0; i < HEAD; i++)
        to[i] = (char)(length >> (8 * (HEAD - 1 - i)) & 0xff);
    memcpy(to + HEAD, bytes, length);
    self->end += HEAD + length;
    return 0;
}

int rl_commands_add_bytes(rl_commands *self, const char *bytes, size_t length)
{
    if (length > INT32_MAX || reserve(self, length) != 0)
        return -1;
    memcpy(self->text + self->end, bytes, length);
    self->end += length;
    return 0;
}

void rl_commands_sent(rl_commands *self, size_t count)
{
    self->first += count;
    if (self->first < self->end)
        return;
    self->first = self->end = 0;
    if (self->size > KEPT)
        rl_commands_free(self);
}

void rl_commands_free(rl_commands *self)
{
    free(self->text);
    memset(self, 0, sizeof(*self));
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

    if (strchr("cCmMpPsSuU", name[0]) == NULL)
        return 1;
    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (is_word(name, length[0], words[i])
            || is_word(name + skip, length[0] - skip, words[i]))
            return 0;
    return argc < 2 || !is_word(name, length[0], "client")
           || !is_word(argv[1], length[1], "reply");
}
