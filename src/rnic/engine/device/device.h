/* The engine for all queue pairs of a device: packets to whoever they are for, turns, deadlines, inflight (design.md,
 * "Many at once"). Sans I/O and without allocation, as engine.h, on whose calls it stands; device/receiving.py and
 * device/sending.py are the truth. What it does not know it leaves to them, with the place where they go on. */
#ifndef RNIC_ENGINE_DEVICE_H
#define RNIC_ENGINE_DEVICE_H

#include "queue_pair/by_reference.h"
#include "engine.h"
#include "device/records.h"

/* Packets of replies that a turn may send beyond its budget, twice: transport/qp.py LEAST. */
#define ENGINE_MIN_REPLIES 4u

/* What of the counters the port adds to; whoever called takes them and sets them to 0. */
struct engine_counts {
	uint64_t rx_packets, tx_packets;
	uint64_t events[ENGINE_COUNTS]; /* by enum engine_count */
	uint64_t moved; /* a bit for each of these that is not 0 */
};

/* A device. Pointers that Python may move are right while nothing of `changes` happened since they were found. */
struct engine_device {
	const struct engine_shared *port;
	struct engine_sched sched;
	uint64_t *directory; /* offsets of queue pairs' records, by the low bits of their numbers */
	struct engine_qp **qps; /* the same by pointers, NULL for those that the engine does not know */
	uint64_t log_qps;
	uint64_t changes;
	uint64_t joins; /* an ACK that is all a queue pair owes leaves with its requests, as the last of their burst */
	struct engine_counts counts;
};

/* The device at the start of an arena; its other fields are the caller's. */
void engine_device_find(struct engine_device *device, uint8_t *arena);

enum engine_stop {
	STOP_DONE, /* everything is taken, or nothing waits for a turn, or the budget is used up */
	STOP_PACKET, /* the packet at the place reached is the reference's */
	STOP_NOTIFY, /* `qp` has completed to a CQ that is armed: raise its event, then go on */
	STOP_FIND, /* the pointers of `qp` are to be found anew, then go on */
	STOP_TURN, /* the open turn is the reference's from `step` on, then go on; first raise what `effects` says */
	STOP_FULL, /* no room for one more turn's packets: carry away what there is, then go on */
	STOP_DEADLINE, /* io/progress_thread.h: the deadline of `qp` has come, and is the reference's */
};

/* What a call has to say of itself. */
struct engine_stop_info {
	uint32_t stop; /* enum engine_stop */
	uint32_t end; /* why the engine punted, or ENGINE_DONE */
	uint64_t qp; /* offset of the record of the queue pair that it is about, or 0 */
	uint32_t effects; /* EFFECT_NOTIFY_SEND, EFFECT_NOTIFY_RECV */
};

/* A packet for a queue pair whose `pace` is the engine's came marked, before it is taken: a CNP with its next turn, one in
 * a merge period (device/congestion.py). */
void engine_device_marked(struct engine_device *device, uint64_t at, uint64_t now);
/* A CNP came for such a queue pair. */
void engine_device_notified(struct engine_device *device, uint64_t at, uint64_t now);

/* A doorbell was rung in the block of a queue pair: 0, or -1 where it is the reference's. */
int engine_device_ring(struct engine_device *device, struct engine_qp *qp);

/* Take packets from `start` on, of a buffer of segments of one sender; the bytes taken. */
size_t engine_device_receive(struct engine_device *device, const uint8_t *buffer, size_t length, size_t segment,
			   size_t start, const struct engine_meta *meta, uint64_t now, struct engine_stop_info *told);

/* A reliable connection that keeps what comes beyond a gap: offset of its record, its life, the PSN that it expects, and whether it has said that it lacks it. */
struct engine_expects {
	uint64_t qp, generation, psn, nak_sent;
};
/* Who has a number, as such; 0, or -1 where it is no such connection, or not the engine's. */
int engine_device_expects(const struct engine_device *device, uint64_t number, struct engine_expects *expects);

/* What became of packets without their bytes (queue_pair/by_reference.h). */
enum engine_taken {
	TAKEN_ALL, /* as of packets: they may be duplicates, or beyond a gap */
	TAKEN_PARTIAL, /* what they acknowledge: the same again for the rest, once `told` is carried out */
	TAKEN_REFUSED, /* they are wanted with their bytes: of requests the sender goes back to them, responses are asked for */
	TAKEN_NOTHING, /* they are for nobody here: lost */
};
/* Take such, for the queue pair that its sender's is connected to. STOP_FIND: then the same again. */
enum engine_taken engine_device_by_reference(struct engine_device *device, const struct engine_by_reference *bulk, struct engine_pull *pull,
				  uint64_t now, struct engine_stop_info *told);
/* Whoever is to take those of `bulk` wants them with their bytes. */
void engine_device_refused(struct engine_device *device, const struct engine_by_reference *bulk, uint64_t now);

/* Where the reference takes a turn over. */
enum engine_step {
	STEP_FIRST, /* nothing was done */
	STEP_REQUESTS, /* the engine stopped among the requests, `count` packets into the turn */
	STEP_REST, /* replies are left */
};

/* One round of turns. It begins with all zeros; the caller leaves it alone until engine_device_sent. */
struct engine_sending {
	uint64_t sent; /* of the budget */
	uint64_t qp; /* the open turn: whose it is, 0 for none */
	uint64_t limit, count, bytes; /* packets that it may send, packets and bytes made */
	uint64_t room; /* packets that its requests may be */
	uint32_t step; /* enum engine_step */
	uint32_t later; /* those whose replies let new messages go first: they get another turn in the end */
	uint64_t polite[ENGINE_BURSTS];
};

/* Give turns to who waits; stops as `told` says, and is called again with the same until STOP_DONE. */
void engine_device_send(struct engine_device *device, uint64_t now, uint64_t budget, struct engine_out *out,
		      struct engine_sending *sending, struct engine_stop_info *told);
/* The round is over. */
void engine_device_sent(struct engine_device *device, struct engine_sending *sending);

/* Handle the deadlines that have come, `most` of them at a time. What is to be done for a queue pair that the engine does
 * not know is the reference's: its record; 0 where there is no more. */
uint64_t engine_device_due(struct engine_device *device, uint64_t now, uint64_t *most);
/* When that wants to be called, or NEVER. */
uint64_t engine_device_deadline(const struct engine_device *device);

#endif
