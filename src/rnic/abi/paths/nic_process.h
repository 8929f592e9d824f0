/* The NIC process, for the preloaded library (rnic.spec.attach). */
#ifndef RNIC_PATHS_NIC_PROCESS_H
#define RNIC_PATHS_NIC_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Wait until the NIC process answers, if there is one: `rnic exec` does not wait for the one that it starts. */
void await_nic_process(void);

/* Connect to the NIC process, and wait for its answer to HELLO. Returns the connection, or -1. */
int reach_nic(void);

/* Send a message, with a descriptor if there is one, and wait for its answer, whose first word goes to `told` unless
 * that is NULL. Returns 0 if the NIC process did it, else an errno. */
int ask_nic(int nic, uint32_t kind, const void *body, size_t bytes, int fd, uint32_t *told);

enum { STAND_INS = 1 << 12 /* descriptors below this may be some */ };

/* Descriptors of one kind that stand in for the kernel's: each is one end of a pair of sockets, and the NIC process has
 * the other. A descriptor is one of these as long as it is the same file: the program may close it, and open another
 * under its number. */
struct stand_ins {
	_Atomic uint64_t inodes[STAND_INS]; /* of sockets that were made here; 0 for all others */
	uint32_t told[STAND_INS]; /* what the NIC process answered */
};

bool is_stand_in(struct stand_ins *all, int fd);

/* Make one, with SOCK_* flags, and hand its other end over with this message. Returns the descriptor, or -1. */
int make_stand_in(struct stand_ins *all, int flags, uint32_t kind, const void *body, size_t bytes);

/* Open the umad file of the device with this number. Returns the descriptor, or -1. */
int make_umad(uint32_t number, int flags);

#endif
