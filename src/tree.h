/*
 * The descendants of this process, through /proc. Without it there are none.
 * All functions are safe in a forked child of a program with threads.
 */
#ifndef RL_TREE_H
#define RL_TREE_H

#include <sys/types.h>

/* Sends a signal to all descendants. */
void rl_tree_kill(int number);

/* Sends a signal to the descendants that are in this group. */
void rl_tree_signal(pid_t group, int number);

/* Sends a signal to the direct children that are not in this group. */
void rl_tree_signal_orphans(pid_t group, int number);

/* Calls fn(arg, fd) for each open descriptor from 3 on; fn may close it. */
void rl_tree_files(void (*fn)(void *arg, int fd), void *arg);

#endif
