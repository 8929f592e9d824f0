/* Copies between our memory and the program's that stop at a fault: its pages may be unmapped or read-only when a
 * packet arrives.
 *
 * The kernel's copies (own_process) do the same at the cost of a system call. Here the CPU copies, and handlers for
 * SIGSEGV and SIGBUS catch the fault. Signal handlers are process-wide, so other faults are passed on as if ours did
 * not exist: to handlers that the program installed before or since, with their masks, or to the default action. A
 * thread that blocks these signals never copies this way. */
#ifndef RNIC_ENGINE_FAULT_GUARD_H
#define RNIC_ENGINE_FAULT_GUARD_H

#include <stddef.h>
#include <stdint.h>

/* Catch faults in the copies below until fault_guard_remove is called as often; 0 or -1. */
int fault_guard_install(void);
void fault_guard_remove(void);

/* Reinstall our handlers before those that the program may have installed since. */
void fault_guard_refresh(void);

/* Return whether this thread may use these copies: our handlers are installed, and it did not block their signals at
 * its first call. */
int fault_guard_active(void);

/* Copy; 0, or -1 if a byte of the program's memory, `theirs`, cannot be accessed; other bytes may still be copied. */
int fault_guard_read(void *to, const void *theirs, size_t length);
int fault_guard_write(void *theirs, const void *from, size_t length);
/* Let `work` access these bytes. It may be aborted at any access: nothing may depend on its completion. */
int fault_guard_visit(void *theirs, size_t length, void (*work)(void *with, uint8_t *bytes), void *with);

#endif
