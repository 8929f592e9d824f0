/* The engine's access to a program's registered memory and rings (design.md, "The driver boundary").
 *
 * Keys, protection domains, rights and ranges are checked before (memory/memory_key.h); a backend only moves bytes.
 */
#ifndef RNIC_ENGINE_MEMORY_H
#define RNIC_ENGINE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* A range of a process's memory, and its address in this process. */
struct engine_piece {
	uint64_t va;
	uint8_t *here;
	size_t length;
};

/* Function that reads bytes in place. */
typedef void (*engine_visitor)(void *with, uint8_t *bytes);

/* A memory backend. Each function returns 0, or -1 if any byte is not accessible; faults are returned as -1, no signal
 * is raised. After a failed read the contents of `to` are undefined, after a failed write those of the memory. */
struct engine_memory {
	int (*read)(void *self, uint64_t va, void *to, size_t length);
	int (*write)(void *self, uint64_t va, const void *from, size_t length);
	/* Or NULL: the same for several pieces in one call. `here` ascends; bytes in between are undefined after a
	 * read. Also -1 if one call is not possible: then try piece by piece. */
	int (*read_all)(void *self, const struct engine_piece *pieces, size_t count);
	int (*write_all)(void *self, const struct engine_piece *pieces, size_t count);
	/* Or NULL: let `work` read these bytes in place, once. -1 if a byte is not accessible, or if this is not
	 * possible now: then try `read`. */
	int (*within)(void *self, uint64_t va, size_t length, engine_visitor work, void *with);
};

/* Memory of one owner: a program's, or part of it. */
struct engine_segment {
	const struct engine_memory *memory;
	void *self;
};

/* Location of a memory key's bytes. The key's record has the addresses that it covers. */
struct engine_mapping {
	uint8_t *bytes; /* its first byte, pinned while the key is valid; NULL if in another process */
	const struct engine_segment *segment; /* then the way to access it by the owner's address; NULL: punt */
};

#endif
