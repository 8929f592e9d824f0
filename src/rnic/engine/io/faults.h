/* Faults on packets at a device's socket and rings (link/faults.py is the reference): by the rules of io/fault_rules.h
 * packets are dropped, corrupted, duplicated, marked, delayed and reordered. Linux only. */
#ifndef RNIC_ENGINE_FAULTS_H
#define RNIC_ENGINE_FAULTS_H

#include "engine.h"
#include "io/fault_rules.h"
#include "io/udp.h"

struct fault_packet;

/* Consecutive packets that pass: of the judged buffer, or a delayed one. */
struct fault_run {
	struct fault_packet *packet; /* NULL: of the buffer */
	uint32_t at, end; /* bytes in the buffer */
	uint8_t tclass;
};

/* Held packets of one direction: until a time, or until others have overtaken them. */
struct fault_lane {
	struct fault_packet *delayed, *last_delayed; /* in the order of their times */
	struct fault_packet *held, *last_held;
	uint32_t count;
};

/* Send a part of a burst. */
typedef void (*fault_send)(void *self, struct tx_path *path, const uint8_t *bytes, size_t length, uint32_t segment,
			   uint32_t count);

struct faults {
	struct fault_rules rules;
	const struct engine_shared *shared;
	uint8_t address[16]; /* the device's */
	uint32_t address_bytes;
	uint16_t port;
	struct fault_lane lanes[2];
	struct fault_run *runs;
	uint32_t run_count, run_room, next_run;
	fault_send send;
	void *self;
	uint64_t counted[2][FAULT_ACTIONS]; /* since the caller read them */
	uint64_t full[2]; /* dropped because too many were held */
	uint64_t port_down; /* lost while the port was down */
};

/* Initialize a structure of zeros; the caller sets shared, address, port, send and self. */
void faults_init(struct faults *faults, const uint8_t *table, uint8_t *counts);
void faults_free(struct faults *faults);
/* Return whether any packet of a direction may be faulted or is held. */
int faults_judge(const struct faults *faults, uint32_t direction);
/* Make all held packets due at the next release. */
void faults_expire(struct faults *faults);
/* Return when a held packet is due; NEVER if none is held. */
uint64_t faults_deadline(const struct faults *faults);

/* Judge a burst and send the packets that pass. */
void faults_transmit(struct faults *faults, struct tx_path *path, uint8_t *bytes, size_t length, uint32_t segment,
		     uint64_t now);
/* Judge a receive buffer, whose bytes may be corrupted. Packets that pass are in `runs`. */
void faults_receive(struct faults *faults, const struct rx_buffer *rx, uint64_t now);
/* Send due packets, and make runs of received packets that are due. Returns whether there are any. */
int faults_release(struct faults *faults, uint64_t now);
/* Take the next run. Returns whether there was one. A held packet is copied to the spare buffer. */
int faults_next_run(struct faults *faults, struct rx_buffer *spare, struct fault_run *run);
/* Judge the packets that a record replaces. Returns whether all pass; otherwise they must be sent as packets. */
int faults_pass(struct faults *faults, uint32_t direction, const struct engine_by_reference *by_reference,
		uint64_t mtu);

#endif
