/*
 * Bounds on the replies that hiredis reads: a few bytes from a server must not
 * cause a large allocation or much work. Too long an array is refused where
 * hiredis would allocate it. A string is allocated only once all its bytes
 * have arrived, so its length is checked while the reader waits for them.
 *
 * Errors become messages, so their control characters are replaced here.
 */
#include "reader.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ELEMENTS = 1 << 20, MAX_LINE = 1 << 20 };
enum { MAX_STRING = 1 << 29 }; /* Redis' default proto-max-bulk-len */

#if HIREDIS_MAJOR >= 1
typedef size_t count;
#else
typedef int count;
#endif

static redisReplyObjectFunctions usual, bounded;

static void *create_array(const redisReadTask *task, count elements)
{
    if (elements <= MAX_ELEMENTS)
        return usual.createArray(task, elements);
    *(int *)task->privdata = 1;
    return NULL;
}

static void *create_string(const redisReadTask *task, char *text, size_t length)
{
    redisReply *reply = usual.createString(task, text, length);
    size_t i;

    if (reply == NULL || task->type != REDIS_REPLY_ERROR)
        return reply;
    for (i = 0; i < reply->len; i++)
        if (iscntrl((unsigned char)reply->str[i]))
            reply->str[i] = '?';
    return reply;
}

void rl_reader_bound(redisReader *reader, int *is_long)
{
    usual = *reader->fn;
    bounded = usual;
    bounded.createArray = create_array;
    bounded.createString = create_string;
    reader->fn = &bounded;
    reader->privdata = is_long;
}

static const redisReadTask *current_task(const redisReader *reader)
{
#if HIREDIS_MAJOR >= 1
    return reader->task[reader->ridx];
#else
    return &reader->rstack[reader->ridx];
#endif
}

int rl_reader_is_long(const redisReader *reader)
{
    size_t left = reader->len - reader->pos;
    const char *rest = reader->buf + reader->pos;

    if (reader->ridx < 0 || left == 0)
        return 0;
    if (current_task(reader)->type == REDIS_REPLY_STRING
        && strtoll(rest, NULL, 10) > MAX_STRING)
        return 1;
    return left > MAX_LINE && memchr(rest, '\n', MAX_LINE) == NULL;
}
