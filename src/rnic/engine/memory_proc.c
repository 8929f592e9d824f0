#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include "reach.h"

#include <errno.h>
#include <unistd.h>

static int read_file(void *self, uint64_t va, void *to, size_t length)
{
	const struct reach_file *file = self;
	while (length) {
		ssize_t done = pread(file->fd, to, length, (off_t)va);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0) /* 0: the program that it was is gone */
			return -1;
		va += (uint64_t)done;
		to = (char *)to + done;
		length -= (size_t)done;
	}
	return 0;
}

static int write_file(void *self, uint64_t va, const void *from, size_t length)
{
	const struct reach_file *file = self;
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

const struct engine_memory reach_file = { read_file, write_file };
