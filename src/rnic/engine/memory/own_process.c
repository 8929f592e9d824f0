#if defined(__linux__)
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include "io/nocancel.h"
#include "memory/backends.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

typedef ssize_t (*vm_call)(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long,
			   unsigned long);

/* Copy by process_vm_readv or process_vm_writev, which may copy less: up to the first inaccessible page, or 2 GiB. */
static int vm_copy(vm_call call, const struct own_process *own, uint64_t va, void *here, size_t length)
{
	while (length) {
		struct iovec near = { here, length };
		struct iovec far = { (void *)(uintptr_t)va, length };
		ssize_t done = call(own->pid, &near, 1, &far, 1, 0);
		if (done <= 0)
			return -1;
		va += (uint64_t)done;
		here = (char *)here + done;
		length -= (size_t)done;
	}
	return 0;
}

/* Return the file whose mapping has all these bytes, or NULL. */
static const struct own_process_file *find_file(const struct own_process *own, const uint8_t *here, size_t length)
{
	for (unsigned i = 0; i < OWN_PROCESS_FILES; i++) {
		const struct own_process_file *file = &own->files[i];
		uintptr_t at = (uintptr_t)here - (uintptr_t)file->base;
		if (file->base && at <= file->bytes && length <= file->bytes - at)
			return file;
	}
	return NULL;
}

/* Copy between a file and memory: reading the file stores to memory, up to the first page that is not writable. */
static int file_copy(const struct own_process_file *file, int stores, uint64_t va, const uint8_t *here, size_t length)
{
	off_t at = here - file->base;
	int before = nocancel_begin();
	while (length) {
		void *memory = (void *)(uintptr_t)va;
		ssize_t done = stores ? pread(file->fd, memory, length, at) : pwrite(file->fd, memory, length, at);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			break;
		va += (uint64_t)done;
		at += done;
		length -= (size_t)done;
	}
	nocancel_end(before);
	return length ? -1 : 0;
}

static int read_own(void *self, uint64_t va, void *to, size_t length)
{
	const struct own_process *own = self;
	const struct own_process_file *file = find_file(own, to, length);

	if (file)
		return file_copy(file, 0, va, to, length);
	if (length > own->staging_bytes)
		return vm_copy(process_vm_readv, own, va, to, length);
	if (file_copy(&own->files[0], 0, va, own->staging, length))
		return -1;
	memcpy(to, own->staging, length);
	return 0;
}

static int write_own(void *self, uint64_t va, const void *from, size_t length)
{
	const struct own_process *own = self;
	const struct own_process_file *file = find_file(own, from, length);

	if (file)
		return file_copy(file, 1, va, from, length);
	if (length > own->staging_bytes)
		return vm_copy(process_vm_writev, own, va, (void *)(uintptr_t)from, length);
	memcpy(own->staging, from, length);
	return file_copy(&own->files[0], 1, va, own->staging, length);
}

/* Copy pieces that are close together in one file. The gaps between them use the staging buffer, so that one range of
 * the file is copied. */
static int file_copy_all(const struct own_process *own, int stores, const struct engine_piece *pieces, size_t count)
{
	struct iovec parts[2 * OWN_PROCESS_PIECES];
	size_t used = 0;
	ssize_t total = 0;

	if (!count || count > OWN_PROCESS_PIECES)
		return -1;
	const uint8_t *first = pieces[0].here, *end = first;
	for (size_t i = 0; i < count; i++) {
		if (pieces[i].here < end || (size_t)(pieces[i].here - end) > own->staging_bytes)
			return -1;
		if (pieces[i].here > end)
			parts[used++] = (struct iovec){ own->staging, (size_t)(pieces[i].here - end) };
		parts[used++] = (struct iovec){ (void *)(uintptr_t)pieces[i].va, pieces[i].length };
		end = pieces[i].here + pieces[i].length;
	}
	const struct own_process_file *file = find_file(own, first, (size_t)(end - first));
	if (!file)
		return -1;
	int before = nocancel_begin();
	total = stores ? preadv(file->fd, parts, (int)used, first - file->base) :
			 pwritev(file->fd, parts, (int)used, first - file->base);
	nocancel_end(before);
	return total == end - first ? 0 : -1;
}

static int read_all_own(void *self, const struct engine_piece *pieces, size_t count)
{
	return file_copy_all(self, 0, pieces, count);
}

static int write_all_own(void *self, const struct engine_piece *pieces, size_t count)
{
	return file_copy_all(self, 1, pieces, count);
}

const struct engine_memory own_process = {
	.read = read_own,
	.write = write_own,
	.read_all = read_all_own,
	.write_all = write_all_own,
};
#endif
