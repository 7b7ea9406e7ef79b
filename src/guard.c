/*
 * A guard is a table of the functions by which a reader makes objects. Each
 * looks whether hiredis could place the object, then calls the original. To
 * make nothing ends the connection.
 */
#include "guard.h"

#include <string.h>

static int is_push(const redisReadTask *task)
{
#ifdef REDIS_REPLY_PUSH
    return task->type == REDIS_REPLY_PUSH;
#else
    (void)task;
    return 0;
#endif
}

/* A whole reply: was it asked for, or an error, which hiredis reports? */
static int may_come(const rl_guard *self, const redisReadTask *task,
                    size_t elements)
{
    if (*self->waiting > 0 || task->type == REDIS_REPLY_ERROR)
        return 1;
    if (*self->subscriber)
        return elements >= 3;
    return is_push(task);
}

/* A message is { string, string, anything }; { "message", ... } or else
   { string, string, integer }. */
static int may_be_part(const redisReadTask *task)
{
    const redisReply *whole = task->parent->obj;
    const redisReply *kind = task->idx > 0 ? whole->element[0] : NULL;

    if (task->idx < 2)
        return task->type == REDIS_REPLY_STRING;
    return task->idx > 2 || task->type == REDIS_REPLY_INTEGER
           || strcmp(kind->str, "message") == 0;
}

static int may_make(const redisReadTask *task, size_t elements)
{
    rl_guard *self = task->privdata;
    int may = 1;

    if (task->parent == NULL)
        may = may_come(self, task, elements);
    else if (task->parent->parent == NULL && *self->subscriber
             && *self->waiting == 0)
        may = may_be_part(task);
    self->refused |= !may;
    return may;
}

static const redisReplyObjectFunctions *under(const redisReadTask *task)
{
    return ((const rl_guard *)task->privdata)->under;
}

static void *make_string(const redisReadTask *task, char *text, size_t length)
{
    return may_make(task, 0) ? under(task)->createString(task, text, length)
                             : NULL;
}

#if HIREDIS_MAJOR >= 1
typedef size_t count;
#else
typedef int count;
#endif

static void *make_array(const redisReadTask *task, count elements)
{
    return may_make(task, (size_t)elements)
               ? under(task)->createArray(task, elements)
               : NULL;
}

static void *make_integer(const redisReadTask *task, long long value)
{
    return may_make(task, 0) ? under(task)->createInteger(task, value) : NULL;
}

static void *make_nil(const redisReadTask *task)
{
    return may_make(task, 0) ? under(task)->createNil(task) : NULL;
}

#if HIREDIS_MAJOR >= 1
static void *make_double(const redisReadTask *task, double value, char *text,
                         size_t length)
{
    return may_make(task, 0)
               ? under(task)->createDouble(task, value, text, length)
               : NULL;
}

static void *make_bool(const redisReadTask *task, int value)
{
    return may_make(task, 0) ? under(task)->createBool(task, value) : NULL;
}
#endif

void rl_guard_attach(rl_guard *self, redisReader *reader, const size_t *waiting,
                     const int *subscriber)
{
    self->under = reader->fn;
    self->functions = *reader->fn;
    self->functions.createString = make_string;
    self->functions.createArray = make_array;
    self->functions.createInteger = make_integer;
    self->functions.createNil = make_nil;
#if HIREDIS_MAJOR >= 1
    self->functions.createDouble = make_double;
    self->functions.createBool = make_bool;
#endif
    self->waiting = waiting;
    self->subscriber = subscriber;
    self->refused = 0;
    reader->fn = &self->functions;
    reader->privdata = self;
}
