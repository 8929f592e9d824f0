/* Packets by reference: a record in place of a run of packets of one message, or of the responses to one READ, between
 * two programs of one machine. It has the address of the payload at the sender. The receiver reads the payload from
 * there to its destination (bypass/shm_loopback.h); no process writes to another's memory. The record uses the PSNs of
 * the packets that it replaces, so that everything else, losses included, works as with packets. */
#ifndef RNIC_ENGINE_BY_REFERENCE_H
#define RNIC_ENGINE_BY_REFERENCE_H

#include "engine.h"

#define BY_REFERENCE_RANGES 16u
#define BY_REFERENCE_ACK_REQ 1u
#define BY_REFERENCE_SOLICITED 2u

struct packet;
struct receive;
struct sge_list;

struct engine_range {
	uint64_t va; /* address in the owner's process */
	uint64_t length;
};

struct engine_by_reference {
	uint32_t destination, source; /* queue pairs */
	uint32_t psn, packets; /* PSN of the first packet, and the number of packets */
	uint32_t operation; /* operation of a single packet in place of all of them */
	uint32_t flags; /* BY_REFERENCE_ACK_REQ, BY_REFERENCE_SOLICITED */
	uint64_t va, bytes; /* destination of the message, and bytes of these packets */
	uint32_t rkey, length, imm; /* of the message */
	uint32_t count; /* number of pieces */
	uint64_t epoch; /* epoch of the source queue pair */
	struct engine_range pieces[BY_REFERENCE_RANGES]; /* in the sender's memory */
};

/* The path of a queue pair's packets to a peer that may read this program's memory. */
struct engine_peer_path {
	/* Return whether records of an operation may be sent from this PSN on; if so, `*epoch` is the queue pair's. */
	int (*opens)(struct engine_peer_path *path, const struct engine_qp *qp, uint32_t operation, uint64_t psn,
		     uint64_t *epoch);
	/* Return whether all packets that a record replaces pass the device's fault rules; otherwise send packets. */
	int (*passes)(const struct engine_peer_path *path, const struct engine_by_reference *by_reference,
		      uint64_t mtu);
	/* Return whether input of the peer is pending, so that late packets are not lost. */
	int (*pending)(const struct engine_peer_path *path);
	int asks_again; /* responses before the next PSN must be sent as packets, as the peer has requested */
	uint64_t again;
};

/* Read the bytes to `count` pieces, `by_reference->bytes` in total. Returns 0, or -1 on failure. */
struct engine_pull {
	int (*pull)(struct engine_pull *self, const struct engine_by_reference *by_reference,
		    const struct engine_range *places, unsigned count);
};

/* Return the packets in the next by-reference chunk of a message: large enough to amortize the receiver's system call,
 * small enough to keep several in flight. Returns 0 if they must be sent as packets. */
uint64_t by_reference_chunk(const struct engine_qp *qp, const struct send_wqe *wqe, const struct sge_list *sges);
/* Build a record of the next `count` packets of a message. Returns their number, 0 if they must be sent as packets. */
uint64_t by_reference_make(const struct engine_shared *shared, struct engine_qp *qp, struct send_wqe *wqe,
			   const struct sge_list *sges, uint64_t count, int ask, struct engine_out *out);
/* Do the same for the next `count` responses of a READ. */
uint64_t by_reference_respond(const struct engine_shared *shared, struct engine_qp *qp, struct reply *reply,
			      const struct memory_key *key, uint64_t mtu, uint64_t count, struct engine_out *out);
/* Read the payload of a record to a receive entry from `offset` on, or if that is NULL to the memory of a key.
 * Returns 0, or -1 if any byte is inaccessible. */
int by_reference_execute(const struct engine_shared *shared, const struct engine_qp *qp, const struct packet *packet,
			 const struct receive *receive, const struct memory_key *key, uint64_t at);
/* Read the payload of a record to the buffers of a READ from `offset` on. Returns 0, or -1 if inaccessible. */
int by_reference_read_response(const struct engine_shared *shared, const struct packet *packet,
			       const struct sge_list *sges, uint64_t offset);
/* Make a packet of a record, with its header in BY_REFERENCE_HEADER `bytes`. Returns 0, or -1 if it is invalid. */
#define BY_REFERENCE_HEADER 32u
int by_reference_parse(const struct engine_by_reference *by_reference, uint8_t *bytes, struct packet *packet);

#endif
