/* The progress thread of a driver, which runs the engine while no other thread does (bypass/driver.h). */
#ifndef RNIC_ENGINE_DRIVER_PROGRESS_THREAD_H
#define RNIC_ENGINE_DRIVER_PROGRESS_THREAD_H

#include "bypass/driver_private.h"

/* Start the thread: 0 or the error number. */
int driver_thread_start(struct bypass_driver *driver);
/* Wake it, to check whether there is something to do. */
void driver_thread_wake(struct bypass_driver *driver);
/* Wake it in time for a deadline, unless it wakes early enough by itself. */
void driver_thread_wake_for(struct bypass_driver *driver, uint64_t deadline);
/* Drain a socket's pending wake-ups, at most MAX_WAKEUPS, so that a peer cannot keep us here. They were for all that
 * slept. */
void driver_drain_wake_fd(struct bypass_driver *driver, int fd);

#endif
