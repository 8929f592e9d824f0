/* How the engine reaches memory that a program registered, or that holds its rings (design.md, "The driver boundary").
 *
 * Keys, protection domains, rights and ranges are checked before (memory/memory_key.c); what is here only moves bytes.
 */
#ifndef RNIC_ENGINE_MEMORY_H
#define RNIC_ENGINE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of a process's memory, and where they lie or go here. */
struct engine_piece {
	uint64_t va;
	uint8_t *here;
	size_t length;
};

/* What is done with bytes that are at hand. */
typedef void (*engine_visitor)(void *with, uint8_t *bytes);

/* One way to a process's memory. Each returns 0, or -1 where any byte is out of reach; a fault is an answer, never a
 * signal. After a failed read `to` holds anything; after a failed write the memory does. */
struct engine_memory {
	int (*read)(void *self, uint64_t va, void *to, size_t length);
	int (*write)(void *self, uint64_t va, const void *from, size_t length);
	/* Or NULL: the same for pieces in one call. `here` ascends; what lies between two of them may be anything after a
	 * read. -1 also where that is not possible: then piece by piece tells. */
	int (*read_all)(void *self, const struct engine_piece *pieces, size_t count);
	int (*write_all)(void *self, const struct engine_piece *pieces, size_t count);
	/* Or NULL: have `work` look at these bytes where they are, once. -1 where a byte out of reach ended it, wherever it was
	 * then, and where that is not possible now: `read` tells. */
	int (*within)(void *self, uint64_t va, size_t length, engine_visitor work, void *with);
};

/* The memory of one owner: a program's, or a part of one. */
struct engine_segment {
	const struct engine_memory *memory;
	void *self;
};

/* Where the bytes of one memory key lie. The key's record says which addresses it opens. */
struct engine_mapping {
	uint8_t *bytes; /* its first byte in this process, pinned while the key is valid; NULL where it is elsewhere */
	const struct engine_segment *segment; /* then this reaches it by the address in its own process, or NULL: punt */
};

#endif
