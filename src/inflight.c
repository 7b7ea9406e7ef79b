/*
 * A ring buffer of calls. Deadlines are not kept sorted: most commands have
 * the same timeout, so the connection's one timer fires about once per timeout
 * and scans the calls that are in flight then.
 */
#include "inflight.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SIZE = 16 };

static int calls_grow(rl_inflight *calls)
{
    size_t size = calls->size ? calls->size * 2 : FIRST_SIZE;
    size_t first = calls->size - calls->head;
    rl_call *slot = malloc(size * sizeof(*slot));

    if (slot == NULL)
        return -1;
    if (calls->size != 0) {
        memcpy(slot, calls->slot + calls->head, first * sizeof(*slot));
        memcpy(slot + first, calls->slot, calls->head * sizeof(*slot));
    }
    free(calls->slot);
    calls->slot = slot;
    calls->size = size;
    calls->head = 0;
    return 0;
}

rl_call *rl_inflight_at(const rl_inflight *calls, size_t i)
{
    return &calls->slot[(calls->head + i) & (calls->size - 1)];
}

int rl_inflight_push(rl_inflight *calls, rl_call call)
{
    if (calls->count == calls->size && calls_grow(calls) != 0)
        return -1;
    *rl_inflight_at(calls, calls->count) = call;
    calls->count++;
    return 0;
}

rl_call rl_inflight_pop(rl_inflight *calls)
{
    rl_call call = calls->slot[calls->head];

    calls->head = (calls->head + 1) & (calls->size - 1);
    calls->count--;
    return call;
}

size_t rl_inflight_expire(rl_inflight *calls, size_t i, uint64_t now,
                          rl_call *out)
{
    for (; i < calls->count; i++) {
        rl_call *call = rl_inflight_at(calls, i);

        if (call->id != 0 && call->due <= now) {
            *out = *call;
            call->id = 0;
            return i + 1;
        }
    }
    return 0;
}

uint64_t rl_inflight_due(const rl_inflight *calls)
{
    uint64_t due = UINT64_MAX;
    size_t i;

    for (i = 0; i < calls->count; i++) {
        const rl_call *call = rl_inflight_at(calls, i);

        if (call->id != 0 && call->due < due)
            due = call->due;
    }
    return due;
}

void rl_inflight_free(rl_inflight *calls)
{
    free(calls->slot);
    memset(calls, 0, sizeof(*calls));
}
