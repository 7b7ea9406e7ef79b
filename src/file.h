/*
 * Folders that only we can use, and files that only one process can hold.
 */
#ifndef RL_FILE_H
#define RL_FILE_H

#include <stddef.h>
#include <sys/types.h>

/*
 * Is there a file of this type (S_IFDIR, S_IFSOCK) at the path, no link to
 * one, that belongs to us, and if it is a folder, one that nobody else may
 * enter? 0; UV_ENOENT if there is nothing; else another UV_E* code. Unless 0,
 * a sentence in why. Opens nothing.
 */
int rl_check_private(const char *path, mode_t type, char *why, size_t size);

/*
 * Makes the folder, mode 0700, if there is nothing of this name. 0 if it then
 * is a folder (not a link to one) of ours that nobody else may enter.
 * Otherwise a UV_E* code and a sentence in why.
 */
int rl_private_dir(const char *path, char *why, size_t size);

/*
 * Makes the file, mode 0600, if need be and locks it for this process. The
 * descriptor to close; UV_EAGAIN if another has it; or another UV_E* code.
 */
int rl_lock_file(const char *path, char *why, size_t size);

#endif
