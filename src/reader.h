/*
 * Bounds on the replies that hiredis reads.
 */
#ifndef RL_READER_H
#define RL_READER_H

#include <hiredis.h>

/*
 * From now on the reader refuses an array of more than 2^20 elements, and
 * tells so in is_long: hiredis allocates the whole array, and later looks at
 * all of it, when it has read no more than the length.
 */
void rl_reader_bound(redisReader *reader, int *is_long);

/*
 * Is the reader in the middle of a string that is to be longer than 512 MB,
 * or of a line of more than 1 MB?
 */
int rl_reader_is_long(const redisReader *reader);

#endif
