/*
 * Lua passes a block's size when it frees it, so small blocks need no header.
 * They are cut from chunks; freed ones go to a free list for their size.
 * Chunks are freed when the allocator is closed. Large blocks come from malloc.
 */
#include "allocator.h"

#include <stdlib.h>
#include <string.h>

enum {
    STEP = 8, /* the granularity of sizes */
    LARGEST = 512,
    CHUNK = 32 * 1024
};

typedef struct block {
    struct block *next;
} block;

struct rl_allocator {
    block *chunks;
    char *room; /* the rest of the latest chunk */
    size_t left;
    block *spares[LARGEST / STEP + 1];
};

/*
 * The next block of a free list is probably not cached: it has been unused for
 * some time. Prefetching it while Lua fills this one hides the miss.
 */
static void prefetch(const block *next)
{
#ifdef __GNUC__
    __builtin_prefetch(next, 1);
#else
    (void)next;
#endif
}

static size_t steps_of(size_t size)
{
    return (size + STEP - 1) / STEP;
}

static void give(rl_allocator *self, void *memory, size_t steps)
{
    block *spare = memory;

    spare->next = self->spares[steps];
    self->spares[steps] = spare;
}

static int add_chunk(rl_allocator *self)
{
    block *chunk = malloc(CHUNK);

    if (chunk == NULL)
        return -1;
    if (self->left > 0)
        give(self, self->room, self->left / STEP);
    chunk->next = self->chunks;
    self->chunks = chunk;
    self->room = (char *)(chunk + 1);
    self->left = CHUNK - sizeof(*chunk);
    return 0;
}

static void *take(rl_allocator *self, size_t steps)
{
    block *spare = self->spares[steps];
    size_t size = steps * STEP;

    if (spare != NULL) {
        self->spares[steps] = spare->next;
        prefetch(spare->next);
        return spare;
    }
    if (self->left < size && add_chunk(self) != 0)
        return NULL;
    self->room += size;
    self->left -= size;
    return self->room - size;
}

static int is_small(size_t size)
{
    return size <= LARGEST;
}

static void *get(rl_allocator *self, size_t size)
{
    return is_small(size) ? take(self, steps_of(size)) : malloc(size);
}

static void put(rl_allocator *self, void *memory, size_t size)
{
    if (is_small(size))
        give(self, memory, steps_of(size));
    else
        free(memory);
}

void *rl_allocator_allocate(void *ud, void *from, size_t old, size_t size)
{
    rl_allocator *self = ud;
    void *to;

    if (from == NULL) /* then old is a type tag, not a size */
        return size > 0 ? get(self, size) : NULL;
    if (size == 0) {
        put(self, from, old);
        return NULL;
    }
    if (!is_small(old) && !is_small(size))
        return realloc(from, size);
    if (steps_of(old) == steps_of(size))
        return from;
    to = get(self, size);
    if (to == NULL)
        return NULL;
    memcpy(to, from, old < size ? old : size);
    put(self, from, old);
    return to;
}

rl_allocator *rl_allocator_open(void)
{
    return calloc(1, sizeof(rl_allocator));
}

void rl_allocator_close(rl_allocator *self)
{
    block *chunk = self != NULL ? self->chunks : NULL;

    while (chunk != NULL) {
        block *next = chunk->next;

        free(chunk);
        chunk = next;
    }
    free(self);
}
