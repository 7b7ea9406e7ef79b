/*
 * A record of what a loop reported, one line per event, and a hook that acts
 * while an event is reported.
 */
#ifndef RECORD_H
#define RECORD_H

#include <hiredis.h>

#include "check.h"
#include "loop.h"
#include "timer.h"

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

static inline void stop_loop(void *arg)
{
    (void)arg;
    rl_loop_stop(loop);
}

/* Runs for at most ms; an open connection keeps the loop running. */
static inline void run_for(uint64_t ms)
{
    rl_timer *stopper = rl_timer_open(loop, stop_loop, NULL);

    rl_timer_start(stopper, ms);
    rl_loop_run(loop);
    rl_timer_close(stopper);
}

static inline int recorded(const char *expected)
{
    if (strcmp(record, expected) == 0)
        return 1;
    printf("told:\n%sinstead of:\n%s", record, expected);
    return 0;
}

/* Runs until a text has been recorded at least that often. */
static inline void wait_for(const char *text, size_t times)
{
    double give_up = seconds() + 10 * slow();

    for (;;) {
        const char *at = record;
        size_t seen = 0;

        while ((at = strstr(at, text)) != NULL) {
            seen++;
            at++;
        }
        if (seen >= times)
            return;
        CHECK(seconds() < give_up || recorded(text));
        run_for(5);
    }
}

#endif
