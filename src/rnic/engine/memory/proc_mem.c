#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include "memory/backends.h"

#include <errno.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* linux/fs.h of Linux 6.11, for systems with older headers. */
struct procmap_query {
	uint64_t size, flags, address;
	uint64_t start, end, rights, page, offset, inode;
	uint32_t major, minor, name_size, build_id_size;
	uint64_t name, build_id;
};
#define PROCMAP_QUERY _IOWR('f', 17, struct procmap_query)
#define READABLE 1u
#define WRITABLE 2u

static int read_file(void *self, uint64_t va, void *to, size_t length)
{
	const struct proc_mem *file = self;
	while (length) {
		ssize_t done = pread(file->fd, to, length, (off_t)va);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0) /* 0: the program is gone */
			return -1;
		va += (uint64_t)done;
		to = (char *)to + done;
		length -= (size_t)done;
	}
	return 0;
}

static int write_file(void *self, uint64_t va, const void *from, size_t length)
{
	const struct proc_mem *file = self;
	while (length) {
		ssize_t done = pwrite(file->fd, from, length, (off_t)va);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return -1;
		va += (uint64_t)done;
		from = (const char *)from + done;
		length -= (size_t)done;
	}
	return 0;
}

const struct engine_memory proc_mem = { .read = read_file, .write = write_file };

/* Return whether the program has these rights to the whole range. Each query returns the next mapping. */
static int maps_allow(int maps, uint64_t va, uint64_t length, uint64_t rights)
{
	uint64_t end = va + length;
	if (end < va)
		return 0;
	while (va < end) {
		struct procmap_query query = { .size = sizeof query, .flags = READABLE, .address = va };
		if (ioctl(maps, PROCMAP_QUERY, &query) || query.start > va || query.end <= va ||
		    (query.rights & rights) != rights)
			return 0;
		va = query.end;
	}
	return 1;
}

static int read_program(void *self, uint64_t va, void *to, size_t length)
{
	struct proc_mem_checked *program = self;
	return maps_allow(program->maps, va, length, READABLE) ? read_file(&program->memory, va, to, length) : -1;
}

static int write_program(void *self, uint64_t va, const void *from, size_t length)
{
	struct proc_mem_checked *program = self;
	return maps_allow(program->maps, va, length, READABLE | WRITABLE) ?
		       write_file(&program->memory, va, from, length) :
		       -1;
}

const struct engine_memory proc_mem_checked = { .read = read_program, .write = write_program };
