#include "memory/backends.h"

#include <string.h>

static uint8_t *address_of(void *self, uint64_t va)
{
	const struct in_process *near = self;
	return near->bytes + (va - near->base);
}

static int read_near(void *self, uint64_t va, void *to, size_t length)
{
	memcpy(to, address_of(self, va), length);
	return 0;
}

static int write_near(void *self, uint64_t va, const void *from, size_t length)
{
	memcpy(address_of(self, va), from, length);
	return 0;
}

static int read_all_near(void *self, const struct engine_piece *pieces, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		memcpy(pieces[i].here, address_of(self, pieces[i].va), pieces[i].length);
		if (i + 1 < count) /* any value is allowed */
			memset(pieces[i].here + pieces[i].length, 0xA5,
			       (size_t)(pieces[i + 1].here - pieces[i].here) - pieces[i].length);
	}
	return 0;
}

static int write_all_near(void *self, const struct engine_piece *pieces, size_t count)
{
	for (size_t i = 0; i < count; i++)
		memcpy(address_of(self, pieces[i].va), pieces[i].here, pieces[i].length);
	return 0;
}

const struct engine_memory in_process = {
	.read = read_near,
	.write = write_near,
	.read_all = read_all_near,
	.write_all = write_all_near,
};
