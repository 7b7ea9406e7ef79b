/*
 * Bounds on the replies that hiredis reads.
 */
#ifndef RL_READER_H
#define RL_READER_H

#include <hiredis.h>

/*
 * Makes the reader refuse arrays of more than 2^20 elements and set *is_long.
 * hiredis allocates the whole array, and later scans it, as soon as it has
 * read the length.
 */
void rl_reader_bound(redisReader *reader, int *is_long);

/*
 * Is the reader inside a string longer than 512 MB or a line longer than 1 MB?
 */
int rl_reader_is_long(const redisReader *reader);

#endif
