/*
 * A program that closes descriptors it does not own (`close_range(3, ~0U, 0)`, as daemons do) keeps those of the RDMA libraries. With a hardware NIC, the doorbell is a mapping, which no such call closes.
 *
 * The libraries register their descriptors (engine/io/own_fd.h). Private ones are skipped: close says EBADF, as for a
 * number that is not open. Those that programs poll are ordinary: they are closed, and the libraries unregister them. dup2 and dup3 replace any descriptor that the program names. Calls in a child of vfork, which shares this memory, pass through.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compiler.h"
#include "dlsym_next.h"

enum { DESCRIPTORS = 1 << 16, PRIVATE = 1, SERIAL = 2 };

static _Atomic uint32_t words[DESCRIPTORS]; /* a serial number, and whether it is private; 0 for the program's */
static struct {
	_Atomic uint64_t device, inode;
} files[DESCRIPTORS]; /* inode of the registered file: a direct system call may have closed it */
static _Atomic uint32_t last_word;
static _Atomic int highest = -1;
static _Atomic pid_t owner;

/* Number of registered descriptors that the program closed. */
EXPORT _Atomic uint32_t rnic_fd_generation;

/* ---- for the libraries */

/* Register a descriptor. Returns the word that identifies it, or 0. */
EXPORT uint32_t rnic_fd_own(int fd, int private)
{
	uint32_t word = atomic_fetch_add(&last_word, SERIAL) + SERIAL + (private ? PRIVATE : 0);
	int before = atomic_load(&highest);
	struct stat found;

	if (fd < 0 || fd >= DESCRIPTORS || fstat(fd, &found))
		return 0;
	atomic_store(&files[fd].device, found.st_dev);
	atomic_store(&files[fd].inode, found.st_ino);
	atomic_store(&owner, getpid());
	atomic_store(&words[fd], word);
	while (before < fd && !atomic_compare_exchange_weak(&highest, &before, fd))
		;
	return word;
}

EXPORT int rnic_fd_is_own(int fd, uint32_t word)
{
	return !word || atomic_load(&words[fd]) == word;
}

/* Unregister a descriptor that its owner is about to close. Returns whether the owner still had it. */
EXPORT int rnic_fd_disown(int fd, uint32_t word)
{
	return !word || atomic_compare_exchange_strong(&words[fd], &word, 0);
}

/* ---- the program's calls */

static void after_fork(void)
{
	for (int fd = 0; fd <= atomic_load(&highest); fd++)
		atomic_store(&words[fd], 0);
	atomic_store(&highest, -1);
}

static bool is_registered(int fd)
{
	return fd >= 0 && fd < DESCRIPTORS && atomic_load_explicit(&words[fd], memory_order_relaxed);
}

static bool is_owner(void)
{
	return atomic_load(&owner) == getpid();
}

static void lose(int fd)
{
	atomic_store(&words[fd], 0);
	atomic_fetch_add(&rnic_fd_generation, 1);
}

static bool is_same_file(int fd)
{
	int error = errno;
	struct stat found;
	bool same = fstat(fd, &found) ? errno != EBADF :
					found.st_dev == atomic_load(&files[fd].device) &&
						found.st_ino == atomic_load(&files[fd].inode);

	errno = error;
	return same;
}

/* Return whether a descriptor must stay open. If not, it is unregistered now, or was lost before and is the program's own file. */
static bool is_kept(int fd)
{
	if (!is_registered(fd))
		return false;
	if (atomic_load(&words[fd]) & PRIVATE && is_same_file(fd))
		return true;
	lose(fd);
	return false;
}

#define INTERPOSE(type, name, arguments) \
	NEXT(type, name, arguments) \
	EXPORT type our_##name arguments __asm__(#name); \
	EXPORT type our_##name arguments
#define CALL(name, ...) (next_##name() ? next_##name()(__VA_ARGS__) : (errno = ENOSYS, -1))

INTERPOSE(int, close, (int fd))
{
	if (is_registered(fd) && is_owner() && is_kept(fd)) {
		errno = EBADF;
		return -1;
	}
	return CALL(close, fd);
}

INTERPOSE(int, close_range, (unsigned int first, unsigned int last, int flags))
{
	unsigned int end = (unsigned int)(atomic_load(&highest) + 1);
	int result = 0, error = errno;

	if (first > last || first >= end || flags & CLOSE_RANGE_CLOEXEC || !is_owner())
		return CALL(close_range, first, last, flags);
	for (unsigned int fd = first; fd < end && fd <= last; fd++) {
		if (!is_kept((int)fd))
			continue;
		if (fd > first && CALL(close_range, first, fd - 1, flags))
			result = -1, error = errno;
		first = fd + 1;
	}
	if (first <= last && CALL(close_range, first, last, flags))
		result = -1, error = errno;
	errno = error;
	return result;
}

NEXT(void, closefrom, (int))
EXPORT void our_closefrom(int first) __asm__("closefrom");
EXPORT void our_closefrom(int first)
{
	first = first < 0 ? 0 : first;
	if (is_owner())
		for (; first <= atomic_load(&highest); first++)
			if (!is_kept(first))
				CALL(close, first);
	if (next_closefrom())
		next_closefrom()(first);
}

static void before_dup(int from, int to)
{
	if (from != to && is_registered(to) && is_owner() && fcntl(from, F_GETFD) >= 0)
		lose(to);
}

INTERPOSE(int, dup2, (int from, int to))
{
	before_dup(from, to);
	return CALL(dup2, from, to);
}

INTERPOSE(int, dup3, (int from, int to, int flags))
{
	before_dup(from, to);
	return CALL(dup3, from, to, flags);
}

/* Find the functions early: programs call close in signal handlers and in children. */
__attribute__((constructor)) static void init(void)
{
	pthread_atfork(NULL, NULL, after_fork);
	next_close();
	next_close_range();
	next_closefrom();
	next_dup2();
	next_dup3();
}
