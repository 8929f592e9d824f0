#if defined(__linux__)
#define _GNU_SOURCE
#include "io/own_fd.h"

#include "io/nocancel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INTERPOSED __attribute__((weak, visibility("default")))

/* Provided by the preloaded library (abi/paths/interpose_close.c), if present. */
extern _Atomic uint32_t rnic_fd_generation INTERPOSED;
extern uint32_t rnic_fd_own(int fd, int private) INTERPOSED;
extern int rnic_fd_is_own(int fd, uint32_t word) INTERPOSED;
extern int rnic_fd_disown(int fd, uint32_t word) INTERPOSED;

static int is_same_file(const struct own_fd *own)
{
	struct stat found;

	if (fstat(own->fd, &found))
		return errno != EBADF; /* a seccomp filter may refuse it */
	return found.st_dev == own->device && found.st_ino == own->inode;
}

/* Return what tells an eventfd, or an epoll descriptor that watches something, from others of its kind, all of which
 * have one inode: the number by which /proc knows the one (since Linux 5.2), the data of the other's first target; 0
 * for other files. */
static uint64_t anonymous_number(int fd)
{
	static const char eventfd[] = "eventfd-id:", epoll[] = " data:";
	char path[64], text[1024];
	uint64_t number = 0;
	const char *found;
	ssize_t bytes;
	int file, before = nocancel_begin();

	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
	file = open(path, O_RDONLY | O_CLOEXEC);
	bytes = file < 0 ? -1 : read(file, text, sizeof text - 1);
	if (file >= 0)
		close(file);
	if (bytes > 0) {
		text[bytes] = 0;
		if ((found = strstr(text, eventfd)))
			number = strtoull(found + sizeof eventfd - 1, NULL, 10) + 1;
		else if ((found = strstr(text, epoll)))
			number = strtoull(found + sizeof epoll - 1, NULL, 16);
	}
	nocancel_end(before);
	return number;
}

static void close_uncanceled(int fd)
{
	int before = nocancel_begin();

	close(fd);
	nocancel_end(before);
}

void own_fd_take(struct own_fd *own, int fd, enum own_fd_kind kind)
{
	int moved = fd >= 0 && fd <= STDERR_FILENO && kind == OWN_FD_PRIVATE ?
			    fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) :
			    -1;
	struct stat found;

	if (moved >= 0) {
		close_uncanceled(fd);
		fd = moved;
	}
	*own = (struct own_fd){ .fd = fd };
	if (fd < 0 || fstat(fd, &found))
		return;
	own->device = found.st_dev;
	own->inode = found.st_ino;
	if (kind != OWN_FD_WATCHED)
		own->anonymous = anonymous_number(fd);
	if (rnic_fd_own && kind != OWN_FD_WATCHED)
		own->word = rnic_fd_own(fd, kind == OWN_FD_PRIVATE);
}

static int is_registered(const struct own_fd *own)
{
	return !own->word || rnic_fd_is_own(own->fd, own->word);
}

int own_fd_valid(const struct own_fd *own)
{
	return own->fd < 0 || (is_registered(own) && is_same_file(own));
}

int own_fd_valid_exact(const struct own_fd *own)
{
	return own_fd_valid(own) && (!own->anonymous || own->anonymous == anonymous_number(own->fd));
}

void own_fd_close(struct own_fd *own)
{
	int ours = own->fd >= 0 && own_fd_valid_exact(own);

	if (own->fd >= 0 && own->word && !rnic_fd_disown(own->fd, own->word))
		ours = 0;
	if (ours)
		close_uncanceled(own->fd);
	own->fd = -1;
}

void own_fd_close_inherited(struct own_fd *own)
{
	own->word = 0;
	own_fd_close(own);
}

void own_fds_init(struct own_fds *group)
{
	memset(group, 0, sizeof *group);
	group->borrowed.fd = -1;
}

int own_fds_add(struct own_fds *group, int fd)
{
	struct own_fd *own = &group->list[group->count];

	own_fd_take(own, fd, OWN_FD_PRIVATE);
	if (own->fd >= 0)
		group->count++;
	return own->fd;
}

void own_fds_watch(struct own_fds *group, int fd)
{
	if (group->count < OWN_FDS)
		own_fd_take(&group->list[group->count++], fd, OWN_FD_WATCHED);
}

/* Let the program close the file under a number that was ours. */
static void give_up(struct own_fd *own)
{
	if (own->word)
		rnic_fd_disown(own->fd, own->word);
}

int own_fds_valid(struct own_fds *group, uint64_t now)
{
	int valid = 1;
	uint32_t generation = &rnic_fd_generation ? atomic_load_explicit(&rnic_fd_generation, memory_order_acquire) : 0;

	if (now < atomic_load_explicit(&group->check_ns, memory_order_relaxed) &&
	    generation == atomic_load_explicit(&group->generation, memory_order_relaxed))
		return 1;
	if (!own_fd_valid(&group->borrowed))
		valid = 0;
	for (uint32_t i = 0; i < group->count; i++)
		if (!own_fd_valid(&group->list[i])) {
			give_up(&group->list[i]);
			valid = 0;
		}
	if (!valid)
		return 0;
	atomic_store_explicit(&group->generation, generation, memory_order_relaxed);
	atomic_store_explicit(&group->check_ns, now + OWN_FD_CHECK_NS, memory_order_relaxed);
	return 1;
}

void own_fds_close(struct own_fds *group)
{
	for (; group->count; group->count--)
		own_fd_close(&group->list[group->count - 1]);
}

void own_fds_close_inherited(struct own_fds *group)
{
	for (uint32_t i = 0; i < group->count; i++)
		group->list[i].word = 0;
	own_fds_close(group);
}
#endif
