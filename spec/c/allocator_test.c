/*
 * The allocator for Lua: blocks keep their contents, and freed memory is
 * reused.
 */
#include "allocator.h"

#include <stdint.h>

#include "check.h"

enum { BLOCKS = 400, SIZES = 1200 };

static rl_allocator *allocator;
static unsigned char *blocks[BLOCKS];
static size_t sizes[BLOCKS];

static void resize(int i, size_t size)
{
    size_t kept = size < sizes[i] ? size : sizes[i], n;
    unsigned char *block =
        rl_allocator_allocate(allocator, blocks[i], sizes[i], size);

    CHECK((block != NULL) == (size > 0));
    CHECK((uintptr_t)block % sizeof(double) == 0);
    for (n = 0; n < kept; n++)
        CHECK(block[n] == (unsigned char)i);
    if (size > 0)
        memset(block, i, size);
    blocks[i] = block;
    sizes[i] = size;
}

static void blocks_keep_what_is_in_them(void)
{
    unsigned next = 1;
    int i, n;

    allocator = rl_allocator_open();
    for (n = 0; n < 20 * BLOCKS; n++) {
        next = next * 1103515245 + 12345;
        resize(n % BLOCKS, next / 65536 % 4 ? next / 65536 % SIZES : 0);
    }
    for (i = 0; i < BLOCKS; i++)
        resize(i, 0);
    rl_allocator_close(allocator);
    rl_allocator_close(NULL);
}

static void what_came_back_is_used_again(void)
{
    void *block, *other;

    allocator = rl_allocator_open();
    block = rl_allocator_allocate(allocator, NULL, 5, 40);
    CHECK(rl_allocator_allocate(allocator, block, 40, 36) == block);
    CHECK(rl_allocator_allocate(allocator, block, 36, 0) == NULL);
    other = rl_allocator_allocate(allocator, NULL, 0, 48);
    CHECK(other != block);
    CHECK(rl_allocator_allocate(allocator, NULL, 0, 33) == block);
    CHECK(rl_allocator_allocate(allocator, NULL, 0, 0) == NULL);
    rl_allocator_close(allocator);
}

int main(void)
{
    RUN(blocks_keep_what_is_in_them);
    RUN(what_came_back_is_used_again);
    return check_end();
}
