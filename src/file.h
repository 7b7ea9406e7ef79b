/*
 * Folders private to this user, and lock files.
 */
#ifndef RL_FILE_H
#define RL_FILE_H

#include <stddef.h>
#include <sys/types.h>

/*
 * Checks that path itself, not the target of a symlink, has this type (S_IFDIR
 * or S_IFSOCK), that we own it, and that no other user may enter it if it is a
 * folder. Returns 0; UV_ENOENT if it does not exist; or another UV_E* code. On
 * error, why has a message. Opens nothing.
 */
int rl_check_private(const char *path, mode_t type, char *why, size_t size);

/*
 * Makes the folder with mode 0700 if it does not exist. Returns 0 if it is
 * then private, as rl_check_private defines it; else a UV_E* code, with a
 * message in why.
 */
int rl_private_dir(const char *path, char *why, size_t size);

/*
 * Makes the file with mode 0600 if need be, and locks it for this process.
 * Returns the descriptor, to be closed; UV_EAGAIN if another process holds the
 * lock; or another UV_E* code.
 */
int rl_lock_file(const char *path, char *why, size_t size);

#endif
