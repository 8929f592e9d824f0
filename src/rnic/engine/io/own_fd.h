/* Our descriptors in a program that may close any descriptor and reuse its number. Under `rnic exec`, close and similar
 * calls skip private ones (abi/paths/interpose_close.c). Other cases (system calls without libc, programs without the
 * preloaded library) are detected by fstat: before each use of rarely used descriptors, and every OWN_FD_CHECK_NS and
 * after each sleep for those of the data path. A file that the program opens by raw system calls under a reused number
 * within that time may get our data. All eventfds and epoll descriptors share an inode: only /proc distinguishes ours
 * from another one, which is checked before closing it, but not at each use. */
#ifndef RNIC_ENGINE_OWN_FD_H
#define RNIC_ENGINE_OWN_FD_H

#include <stdatomic.h>
#include <stdint.h>

#define OWN_FD_CHECK_NS 250000u
#define OWN_FDS 272u /* a device with all its source ports */

enum own_fd_kind {
	OWN_FD_SHARED, /* the program polls it, and may close it */
	OWN_FD_PRIVATE,
	OWN_FD_WATCHED, /* another owner has registered it, and closes it */
};

struct own_fd {
	int fd; /* -1 for none */
	uint32_t word; /* registration word; 0 if not registered */
	uint64_t device, inode, anonymous; /* `anonymous` distinguishes eventfds and epoll descriptors, or is 0 */
};

/* Take a descriptor; -1 leaves `own` empty. A private one is moved away from the standard streams. */
void own_fd_take(struct own_fd *own, int fd, enum own_fd_kind kind);
/* Return whether it is still the same file; true for none. */
int own_fd_valid(const struct own_fd *own);
/* Return the same, also distinguishing eventfds and epoll descriptors, which takes microseconds. */
int own_fd_valid_exact(const struct own_fd *own);
/* Close it unless its number belongs to another file now. */
void own_fd_close(struct own_fd *own);
/* Close it in the same way in a child of fork, where nothing is registered. */
void own_fd_close_inherited(struct own_fd *own);

/* Descriptors of a data path, checked together. */
struct own_fds {
	struct own_fd list[OWN_FDS];
	struct own_fd borrowed; /* one that another owner closes */
	_Atomic uint32_t count, generation;
	_Atomic uint64_t check_ns;
};

/* Initialize an empty group. */
void own_fds_init(struct own_fds *group);
/* Add a private descriptor (-1 for none), and return its number, which may have changed. */
int own_fds_add(struct own_fds *group, int fd);
/* Add a descriptor that another owner has registered and will close. */
void own_fds_watch(struct own_fds *group, int fd);
/* Return whether all are still the same files. */
int own_fds_valid(struct own_fds *group, uint64_t now);
/* Force a check in the next own_fds_valid, since this thread has slept. */
static inline void own_fds_recheck(struct own_fds *group)
{
	atomic_store_explicit(&group->check_ns, 0, memory_order_relaxed);
}
void own_fds_close(struct own_fds *group);
void own_fds_close_inherited(struct own_fds *group);
#endif
