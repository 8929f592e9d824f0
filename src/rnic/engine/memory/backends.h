/* Memory backends: this process's memory by its addresses, another process's through /proc/PID/mem (Linux), or memory
 * of this process under other addresses. */
#ifndef RNIC_ENGINE_BACKENDS_H
#define RNIC_ENGINE_BACKENDS_H

#include "memory/memory.h"

/* This process's memory by address. The kernel copies, so an unmapped or read-only page is an error, not a signal.
 * Copies from and to a file are fastest: buffers in a mapped memory file are copied there directly, small ones through
 * `staging`, and all others by process_vm_readv and process_vm_writev. `self` is a struct own_process. */
#define OWN_PROCESS_FILES 2u
#define OWN_PROCESS_PIECES 64u /* most pieces in one call */
struct own_process_file {
	uint8_t *base; /* a file's bytes from 0 on; NULL for none */
	size_t bytes;
	int fd;
};
struct own_process {
	int pid; /* pid of this process; a forked child sets its own */
	struct own_process_file files[OWN_PROCESS_FILES];
	uint8_t *staging; /* in the first file, reserved for this */
	size_t staging_bytes;
};
extern const struct engine_memory own_process;

/* The same, copied by the CPU under memory/fault_guard.h, on threads that it covers. `self` is a struct own_process. */
extern const struct engine_memory guarded_process;

/* Another process's memory through an open /proc/PID/mem. The descriptor still refers to that process if its pid is
 * reused, and becomes invalid at exec. It can write read-only pages, so rights are checked before. `self` is a struct
 * proc_mem. */
struct proc_mem {
	int fd;
};
extern const struct engine_memory proc_mem;

/* The same, limited to memory that the program itself may read or write now: each access queries `maps`, its open
 * /proc/PID/maps (PROCMAP_QUERY, Linux 6.11; without it, no memory is accessible). `self` is a struct proc_mem_checked.
 * */
struct proc_mem_checked {
	struct proc_mem memory;
	int maps;
};
extern const struct engine_memory proc_mem_checked;

/* Pinned memory of this process, under addresses from `base` on. `self` is a struct in_process. */
struct in_process {
	uint8_t *bytes;
	uint64_t base;
};
extern const struct engine_memory in_process;

#endif
