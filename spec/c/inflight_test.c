/*
 * The queue of calls: order, growth around the ring's wrap, deadlines.
 */
#include "inflight.h"
#include "check.h"

static rl_call call_of(int64_t id, uint64_t due)
{
    rl_call call = { .id = id, .sent = 0, .due = due };

    return call;
}

static void an_empty_queue_has_no_deadline(void)
{
    rl_inflight calls = { 0 };
    rl_call call;

    CHECK(calls.count == 0);
    CHECK(rl_inflight_due(&calls) == UINT64_MAX);
    CHECK(rl_inflight_expire(&calls, 0, UINT64_MAX, &call) == 0);
    rl_inflight_free(&calls);
}

static void first_in_is_first_out_however_it_grows(void)
{
    rl_inflight calls = { 0 };
    int64_t in = 1, out = 1;
    int round, i;

    for (round = 0; round < 200; round++) {
        for (i = 0; i < 7; i++, in++)
            CHECK(rl_inflight_push(&calls, call_of(in, UINT64_MAX)) == 0);
        for (i = 0; i < 5; i++, out++)
            CHECK(rl_inflight_pop(&calls).id == out);
    }
    CHECK(calls.count == (size_t)(in - out));
    for (i = 0; out + i < in; i++)
        CHECK(rl_inflight_at(&calls, (size_t)i)->id == out + i);
    while (out < in)
        CHECK(rl_inflight_pop(&calls).id == out++);
    rl_inflight_free(&calls);
}

static void what_is_due_is_found_once_and_stays_in_line(void)
{
    rl_inflight calls = { 0 };
    rl_call call;
    size_t i;

    rl_inflight_push(&calls, call_of(1, 50));
    rl_inflight_push(&calls, call_of(2, 10));
    rl_inflight_push(&calls, call_of(3, UINT64_MAX));
    rl_inflight_push(&calls, call_of(4, 20));
    CHECK(rl_inflight_due(&calls) == 10);
    i = rl_inflight_expire(&calls, 0, 20, &call);
    CHECK(i == 2 && call.id == 2);
    i = rl_inflight_expire(&calls, i, 20, &call);
    CHECK(i == 4 && call.id == 4);
    CHECK(rl_inflight_expire(&calls, i, 20, &call) == 0);
    CHECK(rl_inflight_due(&calls) == 50);
    CHECK(calls.count == 4);
    CHECK(rl_inflight_pop(&calls).id == 1);
    CHECK(rl_inflight_pop(&calls).id == 0);
    CHECK(rl_inflight_pop(&calls).id == 3);
    CHECK(rl_inflight_pop(&calls).id == 0);
    rl_inflight_free(&calls);
}

static void growth_while_looking_for_what_is_due(void)
{
    rl_inflight calls = { 0 };
    rl_call call;
    size_t i = 0;
    int64_t found = 0;
    int64_t id;

    for (id = 1; id <= 16; id++)
        rl_inflight_push(&calls, call_of(id, 5));
    while ((i = rl_inflight_expire(&calls, i, 5, &call)) != 0) {
        CHECK(call.id == ++found);
        rl_inflight_push(&calls, call_of(100 + found, 6));
    }
    CHECK(found == 16);
    CHECK(rl_inflight_due(&calls) == 6);
    rl_inflight_free(&calls);
}

int main(void)
{
    RUN(an_empty_queue_has_no_deadline);
    RUN(first_in_is_first_out_however_it_grows);
    RUN(what_is_due_is_found_once_and_stays_in_line);
    RUN(growth_while_looking_for_what_is_due);
    return check_end();
}
