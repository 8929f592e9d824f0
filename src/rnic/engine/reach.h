/* The ways to memory that a process can be given: by its own addresses, or another's through /proc/PID/mem (Linux). */
#ifndef RNIC_ENGINE_REACH_H
#define RNIC_ENGINE_REACH_H

#include "memory.h"

/* This process's memory by address. The kernel copies, so that what is not mapped, or not writable, is an answer;
 * a handler for SIGSEGV would be the whole program's. `self` is a struct reach_own. */
struct reach_own {
	int pid; /* of this process: a child of it sets its own */
};
extern const struct engine_memory reach_own;

/* Another process's memory through an open /proc/PID/mem, which stays that process's when its number is given to
 * another and ends with its program. It stores through read-only pages too: rights are checked before.
 * `self` is a struct reach_file. */
struct reach_file {
	int fd;
};
extern const struct engine_memory reach_file;

/* The same, as far as the program itself may read or write now: each access asks `maps`, its open /proc/PID/maps
 * (PROCMAP_QUERY, Linux 6.11; without it nothing is in reach). `self` is a struct reach_program. */
struct reach_program {
	struct reach_file memory;
	int maps;
};
extern const struct engine_memory reach_program;

#endif
