/* Access of the engine to memory that a program registered, or that holds its rings (design.md, "The driver boundary").
 *
 * Keys, protection domains, rights and ranges are checked before (memory/memory_key.h); a backend only moves bytes.
 */
#ifndef RNIC_ENGINE_MEMORY_H
#define RNIC_ENGINE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of a process's memory, and where they are in this process. */
struct engine_piece {
	uint64_t va;
	uint8_t *here;
	size_t length;
};

/* A function on bytes in place. */
typedef void (*engine_visitor)(void *with, uint8_t *bytes);

/* One way to a process's memory. Each returns 0, or -1 if any byte is out of reach; a fault is returned as -1, no
 * signal is raised. After a failed read the contents of `to` are undefined; after a failed write those of the memory
 * are. */
struct engine_memory {
	int (*read)(void *self, uint64_t va, void *to, size_t length);
	int (*write)(void *self, uint64_t va, const void *from, size_t length);
	/* Or NULL: the same for pieces in one call. `here` ascends; bytes between two of them are undefined after a
	 * read. -1 also if one call cannot do it: then try piece by piece. */
	int (*read_all)(void *self, const struct engine_piece *pieces, size_t count);
	int (*write_all)(void *self, const struct engine_piece *pieces, size_t count);
	/* Or NULL: have `work` read these bytes in place, once. -1 if a byte out of reach ended it, or if that is not
	 * possible now: then try `read`. */
	int (*within)(void *self, uint64_t va, size_t length, engine_visitor work, void *with);
};

/* The memory of one owner: a program's, or a part of one. */
struct engine_segment {
	const struct engine_memory *memory;
	void *self;
};

/* Place of the bytes of one memory key. The key's record says which addresses it opens. */
struct engine_mapping {
	uint8_t *bytes; /* its first byte in this process, pinned while the key is valid; NULL where it is elsewhere */
	const struct engine_segment *segment; /* then this reaches it by the owner's address, or NULL: punt */
};

#endif
