/* The engine for all queue pairs of a device: dispatch of packets, turns, deadlines, in-flight budget (design.md, "Many
 * at once"). It does no I/O and allocates nothing, as engine.h, on whose calls it is built; device/receiving.py and
 * device/sending.py are the reference. What it does not know it leaves to them, and says where they go on. */
#ifndef RNIC_ENGINE_DEVICE_H
#define RNIC_ENGINE_DEVICE_H

#include "queue_pair/by_reference.h"
#include "engine.h"
#include "device/records.h"

/* Replies that a turn may send beyond its budget, twice: transport/qp.py LEAST. */
#define ENGINE_MIN_REPLIES 4u

/* The counters that the device adds to. The caller takes them and sets them to 0. */
struct engine_counts {
	uint64_t rx_packets, tx_packets;
	uint64_t events[ENGINE_COUNTS]; /* by enum engine_count */
	uint64_t changed; /* one bit for each event that is not 0 */
};

/* A device. Pointers that Python may move are valid as long as `changes` is what it was when they were found. */
struct engine_device {
	const struct engine_shared *shared;
	struct engine_sched sched;
	uint64_t *directory; /* offsets of queue pairs' records, by the low bits of their numbers */
	struct engine_qp **qps; /* the same as pointers; NULL for those that the engine does not know */
	uint64_t log_qps;
	uint64_t changes;
	/* an ACK that is all a queue pair owes leaves as the last packet of its requests' burst */
	uint64_t piggyback_acks;
	struct engine_counts counts;
};

/* Find the device's tables from the start of its arena. The caller sets the other fields. */
void engine_device_find(struct engine_device *device, uint8_t *arena);

enum engine_stop {
	STOP_DONE, /* everything is taken, or no queue pair waits for a turn, or the budget is used up */
	STOP_PUNT_PACKET, /* the packet at the offset reached is the reference's */
	STOP_NOTIFY, /* `qp` has completed to an armed CQ: raise its event, then go on */
	STOP_MAP_QP, /* find the pointers of `qp` anew, then go on */
	/* the open turn is the reference's from `step` on, then go on; first raise what `effects` says */
	STOP_PUNT_TURN,
	STOP_OUT_FULL, /* there is no room for one more turn's packets: send what is laid out, then go on */
	STOP_PUNT_DEADLINE, /* io/progress_thread.h: the deadline of `qp` has come, and is the reference's */
};

/* Reason why a call stopped. */
struct engine_stop_info {
	uint32_t stop; /* enum engine_stop */
	uint32_t end; /* why the engine punted, or ENGINE_DONE */
	uint64_t qp; /* offset of the record of the queue pair concerned, or 0 */
	uint32_t effects; /* EFFECT_NOTIFY_SEND, EFFECT_NOTIFY_RECV */
	uint64_t refused; /* responses by reference that were asked for again */
};

/* Note an ECN mark, before its packet is taken, on a packet for a queue pair that has a rate limit: a CNP leaves with
 * its next turn, one in a merge period (device/congestion.py). */
void engine_device_on_mark(struct engine_device *device, uint64_t at, uint64_t now);
/* Note a CNP that came for such a queue pair. */
void engine_device_on_cnp(struct engine_device *device, uint64_t at, uint64_t now);

/* Ring the doorbell of a queue pair: 0, or -1 if the reference must. */
int engine_device_ring(struct engine_device *device, struct engine_qp *qp);

/* Take packets from `start` on, of a buffer of segments from one sender; returns the bytes taken. */
size_t engine_device_receive(struct engine_device *device, const uint8_t *buffer, size_t length, size_t segment,
			     size_t start, const struct engine_meta *meta, uint64_t now, struct engine_stop_info *info);

/* Packets that a reliable connection with selective repeat expects. */
struct engine_expects {
	uint64_t qp; /* offset of its record */
	uint64_t generation; /* its record's */
	uint64_t psn; /* the PSN that it expects */
	uint64_t nak_sent; /* it has sent a NAK for that */
};
/* Look up a queue pair by its number. Returns 0, or -1 if it is not such a connection or not served by the engine. */
int engine_device_expects(const struct engine_device *device, uint64_t number, struct engine_expects *expects);

/* Result of packets by reference (queue_pair/by_reference.h). */
enum engine_taken {
	TAKEN_ALL, /* as packets are: they may be duplicates, or beyond a gap */
	TAKEN_PARTIAL, /* only what they acknowledge is done: call again with the same once the stop is handled */
	TAKEN_REFUSED, /* they are wanted with their bytes: the sender resends requests, and responses are asked for */
	TAKEN_NOTHING, /* no queue pair here: dropped */
};
/* Take such packets, for the queue pair that their sender's is connected to. After STOP_MAP_QP: call again with the
 * same. */
enum engine_taken engine_device_by_reference(struct engine_device *device, const struct engine_by_reference *by_ref,
					     struct engine_pull *pull, uint64_t now, struct engine_stop_info *info);
/* Handle the receiver's request for the packets of `by_ref` with their payload. Returns how many are in flight. */
uint64_t engine_device_on_refusal(struct engine_device *device, const struct engine_by_reference *by_ref, uint64_t now);

/* Step at which the reference takes over a turn. */
enum engine_step {
	STEP_FIRST, /* nothing was done */
	STEP_REQUESTS, /* the engine stopped among the requests, `count` packets into the turn */
	STEP_REST, /* replies are left */
};

/* One round of turns. It begins with all zeros; the caller does not change it before engine_device_sent. */
struct engine_sending {
	uint64_t sent; /* of the budget */
	uint64_t qp; /* record of the queue pair whose turn is open, 0 for none */
	uint64_t limit, count, bytes; /* packets that the turn may send; packets and bytes made */
	uint64_t room; /* packets that its requests may be */
	uint32_t step; /* enum engine_step */
	uint32_t deferred_count;
	/* queue pairs whose replies let new messages go first: they get another turn in the end */
	uint64_t deferred[ENGINE_BURSTS];
};

/* Schedule the waiting queue pairs. Stops with a reason in `info`; call it again with the same until STOP_DONE. */
void engine_device_send(struct engine_device *device, uint64_t now, uint64_t budget, struct engine_out *out,
			struct engine_sending *sending, struct engine_stop_info *info);
/* End the round. */
void engine_device_sent(struct engine_device *device, struct engine_sending *sending);

/* Handle due deadlines, up to `*most`, which counts down. Returns the record of a queue pair whose deadline the
 * reference must handle, or 0 if no more are due. */
uint64_t engine_device_due(struct engine_device *device, uint64_t now, uint64_t *most);
/* Return when engine_device_due has something to do, or NEVER. */
uint64_t engine_device_deadline(const struct engine_device *device);

#endif
