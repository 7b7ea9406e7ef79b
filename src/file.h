/*
 * Folders that only we can use, and files that only one process can hold.
 */
#ifndef RL_FILE_H
#define RL_FILE_H

#include <stddef.h>

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
