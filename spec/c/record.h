/*
 * A record of what a loop reported, one line per event, and a hook that acts
 * while an event is reported.
 */
#ifndef RECORD_H
#define RECORD_H

#include <hiredis.h>

#include "check.h"
#include "loop.h"

static rl_loop *loop;
static char record[65536];
static void (*on_event)(const rl_event *event);

static inline const char *word_of(const rl_event *event)
{
    static const char *const words[] = { "fired",  "opened",   "replied",
                                         "failed", "lost",     "pushed",
                                         "exited", "reported", "asked",
                                         "frame" };

    return words[event->what];
}

static inline void record_add(const char *format, long long id,
                              const char *word, const char *detail)
{
    size_t used = strlen(record);

    snprintf(record + used, sizeof(record) - used, format, id, word, detail);
}

/* "7 opened", "8 replied PONG", "9 failed closed", "1 lost" */
static inline void note(void *owner, const rl_event *event)
{
    const redisReply *reply = event->reply;
    const char *detail = event->code ? event->code : "";
    char number[32];

    (void)owner;
    if (event->what == RL_FRAME) {
        snprintf(number, sizeof(number), "%.*s", (int)event->length,
                 event->bytes);
        detail = number;
    } else if (event->what == RL_PUSHED) {
        detail = reply->element[0]->str;
    } else if (reply != NULL && reply->str != NULL) {
        detail = reply->str;
    } else if (reply != NULL || event->what == RL_EXITED) {
        snprintf(number, sizeof(number), "%lld",
                 reply ? reply->integer : (long long)event->status);
        detail = number;
    }
    record_add(*detail ? "%lld %s %.100s\n" : "%lld %s%s\n",
               (long long)event->id, word_of(event), detail);
    if (on_event != NULL)
        on_event(event);
}

static inline void open_loop(void)
{
    record[0] = '\0';
    on_event = NULL;
    CHECK(rl_loop_open(&loop, note, NULL) == 0);
}

static inline void close_loop(void)
{
    CHECK(rl_loop_close(loop) == 0);
    loop = NULL;
}

static inline int recorded(const char *expected)
{
    if (strcmp(record, expected) == 0)
        return 1;
    printf("told:\n%sinstead of:\n%s", record, expected);
    return 0;
}

#endif
