/* Copies that a fault ends, and nothing else: between memory of ours and a program's own, whose pages may be gone or not
 * writable by the time that a packet is for them.
 *
 * The kernel's copies (own_process) say the same and cost a system call for each packet. Here the processor copies, and
 * handlers for SIGSEGV and SIGBUS stand by for the fault. They are the whole program's, so whatever is none of ours is
 * handed on as if they were not there: to the handlers that the program had, or has installed since, with their masks;
 * or to the system. A thread that blocks these signals is never copied for in this way. */
#ifndef RNIC_ENGINE_GUARD_H
#define RNIC_ENGINE_GUARD_H

#include <stddef.h>
#include <stdint.h>

/* From now on faults in the copies below are caught, until fault_guard_remove was called as often. 0 or -1. */
int fault_guard_install(void);
void fault_guard_remove(void);

/* The program may have installed handlers of its own meanwhile: ours stand before them again. */
void fault_guard_refresh(void);

/* Whether this thread may copy so: ours are the handlers, and it did not block the signals of a fault when it was asked
 * first. */
int fault_guard_active(void);

/* 0, or -1 where a byte of the program's memory, `theirs`, cannot be read or written; part of the rest is done then. */
int fault_guard_read(void *to, const void *theirs, size_t length);
int fault_guard_write(void *theirs, const void *from, size_t length);
/* The same for whatever `work` does with these bytes. It may be left at any look at them: nobody may need what it has not
 * brought to an end. */
int fault_guard_visit(void *theirs, size_t length, void (*work)(void *with, uint8_t *bytes), void *with);

#endif
