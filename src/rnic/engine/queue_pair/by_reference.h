/* Packets without their bytes: a run of packets of one message, or of the responses to one READ, between two programs
 * of one machine, which only says where the sender has the bytes. The receiver reads them there, straight to where they
 * belong (bypass/shm_loopback.h): no process stores to the memory of another. Such a run takes the PSNs of the packets
 * that it stands for, so that everything else, losses included, is as with those. */
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
	uint64_t va; /* in the process that the range is of */
	uint64_t length;
};

struct engine_by_reference {
	uint32_t destination, source; /* queue pairs */
	uint32_t psn, packets; /* of the first, and how many they are */
	uint32_t operation; /* of one packet that would be all of them */
	uint32_t flags; /* BY_REFERENCE_ACK_REQ, BY_REFERENCE_SOLICITED */
	uint64_t va, bytes; /* where the message goes, and bytes of these packets */
	uint32_t rkey, length, imm; /* of the message */
	uint32_t count; /* pieces */
	uint64_t epoch; /* of the source, when it was made */
	struct engine_range pieces[BY_REFERENCE_RANGES]; /* in the sender's memory */
};

/* The way that the packets of one queue pair take to a peer that may read this program's memory. */
struct engine_peer_path {
	/* Whether such packets of an operation may leave from this PSN on; then `*epoch` is the queue pair's. */
	int (*opens)(struct engine_peer_path *path, const struct engine_qp *qp, uint32_t operation, uint64_t psn,
		     uint64_t *epoch);
	/* Whether something of the peer's waits to be taken, so that what is late has not been lost. */
	int (*pending)(const struct engine_peer_path *path);
	int asks_again; /* responses before the next PSN have been asked for with their bytes, and have no other way */
	uint64_t again;
};

/* Read the bytes to `count` places, in `by_reference->bytes` all in all; 0, or -1 if that is not possible. */
struct engine_pull {
	int (*pull)(struct engine_pull *self, const struct engine_by_reference *by_reference,
		    const struct engine_range *places, unsigned count);
};

/* Return the packets in the next by-reference part of a message: large enough to amortize the receiver's system call,
 * small enough to keep several in flight. 0 if they have to be packets. */
uint64_t by_reference_chunk(const struct engine_qp *qp, const struct send_wqe *wqe, const struct sge_list *sges);
/* Make the next `count` packets of a message as one without its bytes; how many, 0 if they have to be packets. */
uint64_t by_reference_make(const struct engine_shared *shared, struct engine_qp *qp, struct send_wqe *wqe,
			   const struct sge_list *sges, uint64_t count, int ask, struct engine_out *out);
/* The same for the next `count` responses of a READ. */
uint64_t by_reference_respond(const struct engine_shared *shared, struct engine_qp *qp, struct reply *reply,
			      const struct memory_key *key, uint64_t mtu, uint64_t count, struct engine_out *out);
/* Read the bytes of such packets to a receive entry from `offset` on, or if that is NULL to the memory of a key; 0, or
 * -1 if any byte is out of reach. */
int by_reference_execute(const struct engine_shared *shared, const struct engine_qp *qp, const struct packet *packet,
			 const struct receive *receive, const struct memory_key *key, uint64_t at);
/* Read the bytes of such responses to the places of a READ from `offset` on; 0, or -1 if any byte is out of reach. */
int by_reference_read_response(const struct engine_shared *shared, const struct packet *packet,
			       const struct sge_list *sges, uint64_t offset);
/* Make a packet of one, whose header goes to BY_REFERENCE_HEADER `bytes`; 0, or -1 if it makes no sense. */
#define BY_REFERENCE_HEADER 32u
int by_reference_parse(const struct engine_by_reference *by_reference, uint8_t *bytes, struct packet *packet);

#endif
