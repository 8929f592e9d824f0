/* The ways to memory that a process can be given: by its own addresses, or another's through /proc/PID/mem (Linux); or
 * to bytes that are at hand. */
#ifndef RNIC_ENGINE_REACH_H
#define RNIC_ENGINE_REACH_H

#include "memory/memory.h"

/* This process's memory by address. The kernel copies, so that what is not mapped, or not writable, is an answer. It copies
 * fastest from and to a file, so that mappings of files in memory stand between: what lies in one is copied from there,
 * what is small goes through `desk`. What is in neither goes by process_vm_readv and process_vm_writev. `self` is a struct
 * own_process. */
#define OWN_PROCESS_FILES 2u
#define OWN_PROCESS_PIECES 64u /* of one call */
struct own_process_file {
	uint8_t *base; /* a file's bytes from 0 on; NULL for none */
	size_t bytes;
	int fd;
};
struct own_process {
	int pid; /* of this process: a child of it sets its own */
	struct own_process_file files[OWN_PROCESS_FILES];
	uint8_t *desk; /* in the first of them, `desk_bytes` that nobody else uses */
	size_t desk_bytes;
};
extern const struct engine_memory own_process;

/* The same by the processor, under memory/fault_guard.h, for threads that it stands for; `self` is a struct own_process as well. */
extern const struct engine_memory guarded_process;

/* Another process's memory through an open /proc/PID/mem, which stays that process's when its number is given to
 * another and ends with its program. It stores through read-only pages too: rights are checked before.
 * `self` is a struct proc_mem. */
struct proc_mem {
	int fd;
};
extern const struct engine_memory proc_mem;

/* The same, as far as the program itself may read or write now: each access asks `maps`, its open /proc/PID/maps
 * (PROCMAP_QUERY, Linux 6.11; without it nothing is in reach). `self` is a struct proc_mem_checked. */
struct proc_mem_checked {
	struct proc_mem memory;
	int maps;
};
extern const struct engine_memory proc_mem_checked;

/* Bytes of this process that stay where they are, from an address that their owner gives them on. `self` is a struct
 * in_process. */
struct in_process {
	uint8_t *bytes;
	uint64_t base;
};
extern const struct engine_memory in_process;

#endif
