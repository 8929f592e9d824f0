/* The thread of a driver, which runs the engine while nobody else does (bypass/driver.h). */
#ifndef RNIC_ENGINE_DRIVER_PROGRESS_THREAD_H
#define RNIC_ENGINE_DRIVER_PROGRESS_THREAD_H

#include "bypass/driver_private.h"

/* The thread, from now on: 0 or the error number. */
int driver_thread_start(struct bypass_driver *slot);
/* It looks whether there is something to do. */
void driver_thread_wake(struct bypass_driver *slot);
/* It wakes in time for what is due at a time, unless it wakes soon enough by itself. */
void driver_thread_wake_for(struct bypass_driver *slot, uint64_t deadline);
/* Somebody polled from a time to another. */
void driver_note_polled(struct bypass_driver *slot, uint64_t since, uint64_t until);
/* The bell has rung, for all who slept. Whoever rings on and on keeps nobody here. */
void driver_drain_wake_fd(const struct bypass_driver *slot);

#endif
