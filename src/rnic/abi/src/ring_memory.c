/*
 * Memory for rings: regions that the NIC process also maps, cut into pieces.
 *
 * A region costs both sides a mapping, so there are few: each is twice as long as the one before. Pieces are powers of
 * two and go back to a list of their size; a region lives as long as its context.
 */
#define _GNU_SOURCE
#include "ring_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"

enum { SMALLEST_LOG = 10, FIRST_REGION_LOG = 20, LAST_REGION_LOG = 26 };

struct ring_region {
	struct ring_region *next;
	void *base;
	size_t bytes;
};

struct ring_piece { /* free */
	struct ring_piece *next;
	void *base;
};

static unsigned log_of(size_t bytes)
{
	unsigned log = SMALLEST_LOG;

	while (log < sizeof(size_t) * 8 - 1 && (size_t)1 << log < bytes)
		log++;
	return log;
}

/* Add a region. Its descriptor is closed once both sides have it mapped. */
static int add_region(struct rnic_context *context, size_t bytes)
{
	struct ring_store *store = &context->rings;
	struct ring_region *region = calloc(1, sizeof *region);
	int fd, error = 0;

	if (!region)
		return ENOMEM;
	fd = memfd_create("rnic rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0) {
		error = errno;
		free(region);
		return error;
	}
	region->bytes = bytes;
	region->base = MAP_FAILED;
	if (ftruncate(fd, (off_t)bytes) == 0)
		region->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (region->base == MAP_FAILED) {
		error = errno;
	} else {
		error = nic_share(context, region->base, bytes, fd);
		if (error)
			munmap(region->base, bytes);
	}
	close(fd);
	if (error) {
		free(region);
		return error;
	}
	region->next = store->regions;
	store->regions = region;
	return 0;
}

static int alloc_piece(struct rnic_context *context, unsigned log, void **base)
{
	struct ring_store *store = &context->rings;
	struct ring_piece *piece = store->free[log];
	size_t bytes = (size_t)1 << log;
	int error;

	if (piece) {
		store->free[log] = piece->next;
		*base = piece->base;
		free(piece);
		memset(*base, 0, bytes);
		return 0;
	}
	if (store->rest_bytes < bytes) {
		unsigned region = store->regions ? store->next_log : FIRST_REGION_LOG;

		error = add_region(context, (size_t)1 << (log > region ? log : region));
		if (error)
			return error;
		/* The rest of the previous region stays unused: it is too short, and was never touched. */
		store->rest = store->regions->base;
		store->rest_bytes = store->regions->bytes;
		store->next_log = region < LAST_REGION_LOG ? region + 1 : region;
	}
	*base = store->rest;
	store->rest += bytes;
	store->rest_bytes -= bytes;
	return 0;
}

int ring_alloc(struct rnic_context *context, struct ring_memory *memory, size_t bytes)
{
	unsigned log = log_of(bytes);
	int error;

	memory->base = NULL;
	if (context->dead)
		return EIO;
	pthread_mutex_lock(&context->rings.lock);
	error = alloc_piece(context, log, &memory->base);
	pthread_mutex_unlock(&context->rings.lock);
	memory->bytes = (size_t)1 << log;
	return error;
}

/* Free a piece that the device no longer uses. In a forked child nothing is freed: the parent still uses it. */
void ring_free(struct rnic_context *context, struct ring_memory *memory)
{
	struct ring_piece *piece;

	if (!memory->base)
		return;
	piece = context->dead ? NULL : malloc(sizeof *piece);
	if (piece) {
		unsigned log = log_of(memory->bytes);

		piece->base = memory->base;
		pthread_mutex_lock(&context->rings.lock);
		piece->next = context->rings.free[log];
		context->rings.free[log] = piece;
		pthread_mutex_unlock(&context->rings.lock);
	}
	memory->base = NULL;
}

void ring_store_open(struct rnic_context *context)
{
	pthread_mutex_init(&context->rings.lock, NULL);
}

void ring_store_close(struct rnic_context *context)
{
	struct ring_store *store = &context->rings;

	while (store->regions) {
		struct ring_region *region = store->regions;

		store->regions = region->next;
		munmap(region->base, region->bytes);
		free(region);
	}
	for (size_t log = 0; log < COUNT(store->free); log++) {
		while (store->free[log]) {
			struct ring_piece *piece = store->free[log];

			store->free[log] = piece->next;
			free(piece);
		}
	}
	pthread_mutex_destroy(&store->lock);
}
