/*
 * A ring buffer. Deadlines are not kept sorted: most commands have the same
 * timeout, so the connection's one timer fires about once per timeout and
 * scans what is in flight then.
 */
#include "inflight.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SIZE = 16 };

static int inflight_grow(rl_inflight *self)
{
    size_t size = self->size ? self->size * 2 : FIRST_SIZE;
    size_t first = self->size - self->head;
    rl_call *slot = malloc(size * sizeof(*slot));

    if (slot == NULL)
        return -1;
    if (self->size != 0) {
        memcpy(slot, self->slot + self->head, first * sizeof(*slot));
        memcpy(slot + first, self->slot, self->head * sizeof(*slot));
    }
    free(self->slot);
    self->slot = slot;
    self->size = size;
    self->head = 0;
    return 0;
}

rl_call *rl_inflight_at(const rl_inflight *self, size_t i)
{
    return &self->slot[(self->head + i) & (self->size - 1)];
}

int rl_inflight_push(rl_inflight *self, rl_call call)
{
    if (self->count == self->size && inflight_grow(self) != 0)
        return -1;
    *rl_inflight_at(self, self->count) = call;
    self->count++;
    return 0;
}

rl_call rl_inflight_pop(rl_inflight *self)
{
    rl_call call = self->slot[self->head];

    self->head = (self->head + 1) & (self->size - 1);
    self->count--;
    return call;
}

size_t rl_inflight_expire(rl_inflight *self, size_t i, uint64_t now,
                          rl_call *out)
{
    for (; i < self->count; i++) {
        rl_call *call = rl_inflight_at(self, i);

        if (call->id != 0 && call->deadline <= now) {
            *out = *call;
            call->id = 0;
            return i + 1;
        }
    }
    return 0;
}

uint64_t rl_inflight_next_deadline(const rl_inflight *self)
{
    uint64_t deadline = UINT64_MAX;
    size_t i;

    for (i = 0; i < self->count; i++) {
        const rl_call *call = rl_inflight_at(self, i);

        if (call->id != 0 && call->deadline < deadline)
            deadline = call->deadline;
    }
    return deadline;
}

void rl_inflight_free(rl_inflight *self)
{
    free(self->slot);
    memset(self, 0, sizeof(*self));
}
