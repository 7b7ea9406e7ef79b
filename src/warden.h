/*
 * The warden: the parent of the guard. If the guard is killed, the warden kills
 * the command and all its descendants.
 */
#ifndef RL_WARDEN_H
#define RL_WARDEN_H

#include "guard.h"

/* The body of the forked process, in which all signals are blocked. It forks
   the guard. */
noreturn void rl_warden_run(const rl_guard_plan *plan);

#endif
