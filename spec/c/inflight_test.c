/*
 * The commands in flight: order, growth around the ring's wrap, deadlines.
 */
#include "inflight.h"
#include "check.h"

static rl_call call_of(int64_t id, uint64_t deadline)
{
    rl_call call = { .id = id, .sent = 0, .deadline = deadline };

    return call;
}

static void an_empty_queue_has_no_deadline(void)
{
    rl_inflight inflight = { 0 };
    rl_call call;

    CHECK(inflight.count == 0);
    CHECK(rl_inflight_next_deadline(&inflight) == UINT64_MAX);
    CHECK(rl_inflight_expire(&inflight, 0, UINT64_MAX, &call) == 0);
    rl_inflight_free(&inflight);
}

static void first_in_is_first_out_however_it_grows(void)
{
    rl_inflight inflight = { 0 };
    int64_t in = 1, out = 1;
    int round, i;

    for (round = 0; round < 200; round++) {
        for (i = 0; i < 7; i++, in++)
            CHECK(rl_inflight_push(&inflight, call_of(in, UINT64_MAX)) == 0);
        for (i = 0; i < 5; i++, out++)
            CHECK(rl_inflight_pop(&inflight).id == out);
    }
    CHECK(inflight.count == (size_t)(in - out));
    for (i = 0; out + i < in; i++)
        CHECK(rl_inflight_at(&inflight, (size_t)i)->id == out + i);
    while (out < in)
        CHECK(rl_inflight_pop(&inflight).id == out++);
    rl_inflight_free(&inflight);
}

static void what_has_expired_is_found_once_and_stays_in_line(void)
{
    rl_inflight inflight = { 0 };
    rl_call call;
    size_t i;

    rl_inflight_push(&inflight, call_of(1, 50));
    rl_inflight_push(&inflight, call_of(2, 10));
    rl_inflight_push(&inflight, call_of(3, UINT64_MAX));
    rl_inflight_push(&inflight, call_of(4, 20));
    CHECK(rl_inflight_next_deadline(&inflight) == 10);
    i = rl_inflight_expire(&inflight, 0, 20, &call);
    CHECK(i == 2 && call.id == 2);
    i = rl_inflight_expire(&inflight, i, 20, &call);
    CHECK(i == 4 && call.id == 4);
    CHECK(rl_inflight_expire(&inflight, i, 20, &call) == 0);
    CHECK(rl_inflight_next_deadline(&inflight) == 50);
    CHECK(inflight.count == 4);
    CHECK(rl_inflight_pop(&inflight).id == 1);
    CHECK(rl_inflight_pop(&inflight).id == 0);
    CHECK(rl_inflight_pop(&inflight).id == 3);
    CHECK(rl_inflight_pop(&inflight).id == 0);
    rl_inflight_free(&inflight);
}

static void growth_while_looking_for_what_has_expired(void)
{
    rl_inflight inflight = { 0 };
    rl_call call;
    size_t i = 0;
    int64_t found = 0;
    int64_t id;

    for (id = 1; id <= 16; id++)
        rl_inflight_push(&inflight, call_of(id, 5));
    while ((i = rl_inflight_expire(&inflight, i, 5, &call)) != 0) {
        CHECK(call.id == ++found);
        rl_inflight_push(&inflight, call_of(100 + found, 6));
    }
    CHECK(found == 16);
    CHECK(rl_inflight_next_deadline(&inflight) == 6);
    rl_inflight_free(&inflight);
}

int main(void)
{
    RUN(an_empty_queue_has_no_deadline);
    RUN(first_in_is_first_out_however_it_grows);
    RUN(what_has_expired_is_found_once_and_stays_in_line);
    RUN(growth_while_looking_for_what_has_expired);
    return check_end();
}
