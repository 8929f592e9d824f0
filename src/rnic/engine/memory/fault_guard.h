/* Copies between our memory and the program's own that end at a fault: its pages may be gone or read-only by the time
 * that a packet is for them.
 *
 * The kernel's copies (own_process) do the same for a system call each. Here the processor copies, and handlers for
 * SIGSEGV and SIGBUS catch the fault. Handlers are the whole program's, so other faults are passed on as if ours were
 * not there: to the handlers that the program had, or has installed since, with their masks, or to the system. A thread
 * that blocks these signals never copies this way. */
#ifndef RNIC_ENGINE_FAULT_GUARD_H
#define RNIC_ENGINE_FAULT_GUARD_H

#include <stddef.h>
#include <stdint.h>

/* Catch faults in the copies below until fault_guard_remove was called as often; 0 or -1. */
int fault_guard_install(void);
void fault_guard_remove(void);

/* Put our handlers before those that the program may have installed meanwhile. */
void fault_guard_refresh(void);

/* Return whether this thread may copy so: the handlers are ours, and it did not block their signals at its first
 * call. */
int fault_guard_active(void);

/* Copy; 0, or -1 if a byte of the program's memory, `theirs`, cannot be accessed. Other bytes may have been copied
 * then. */
int fault_guard_read(void *to, const void *theirs, size_t length);
int fault_guard_write(void *theirs, const void *from, size_t length);
/* Have `work` access these bytes. It may be aborted at any access: nothing may depend on its completing. */
int fault_guard_visit(void *theirs, size_t length, void (*work)(void *with, uint8_t *bytes), void *with);

#endif
