/* The engine for all queue pairs of a device: dispatch of packets, turns, timers, in-flight budget (design.md, "Many at
 * once"). Like engine.h, on which it is built, it does no I/O and allocates nothing. The reference is
 * device/receiving.py and device/sending.py; a punt tells where they continue. */
#ifndef RNIC_ENGINE_DEVICE_H
#define RNIC_ENGINE_DEVICE_H

#include "queue_pair/by_reference.h"
#include "engine.h"
#include "device/records.h"

/* Replies that a turn may send beyond its budget (transport/qp.py, LEAST). */
#define ENGINE_MIN_REPLIES 4u

/* Counters of the device. The caller reads them and resets them to 0. */
struct engine_counts {
	uint64_t rx_packets, tx_packets;
	uint64_t events[ENGINE_COUNTS]; /* by enum engine_count */
	uint64_t changed; /* a bit for each nonzero event count */
};

/* A device. Pointers to memory that Python may move are valid until `changes` changes. */
struct engine_device {
	const struct engine_shared *shared;
	struct engine_sched sched;
	uint64_t *directory; /* offsets of queue pair records, by the low bits of their numbers */
	struct engine_qp **qps; /* the queue pairs; NULL if the engine does not handle one */
	uint64_t log_qps;
	uint64_t changes;
	/* send the only owed ACK as the last packet of the burst of requests */
	uint64_t piggyback_acks;
	struct engine_counts counts;
};

/* Find the device's tables from the start of its arena. The caller sets the other fields. */
void engine_device_find(struct engine_device *device, uint8_t *arena);

enum engine_stop {
	STOP_DONE, /* all packets are processed, or no queue pair waits for a turn, or the budget is used up */
	STOP_PUNT_PACKET, /* the packet at the reached offset is punted */
	STOP_NOTIFY, /* `qp` has completed to an armed CQ: raise its event, then continue */
	STOP_MAP_QP, /* look up the pointers of `qp` again, then continue */
	/* raise the events in `effects`, let the reference finish the open turn from `step` on, then continue */
	STOP_PUNT_TURN,
	STOP_OUT_FULL, /* there is no room for another turn's packets: send those in the buffer, then continue */
	STOP_PUNT_DEADLINE, /* io/progress_thread.h: a timer of `qp` has expired and is punted */
};

/* Reason why a call stopped. */
struct engine_stop_info {
	uint32_t stop; /* enum engine_stop */
	uint32_t end; /* why the engine punted, or ENGINE_DONE */
	uint64_t qp; /* offset of the record of the queue pair concerned, or 0 */
	uint32_t effects; /* EFFECT_NOTIFY_SEND, EFFECT_NOTIFY_RECV */
	uint64_t refused; /* by-reference responses that were requested again */
};

/* Handle an ECN mark on a packet, before the packet is processed: a CNP is sent in the queue pair's next turn, at most
 * one per merge period (device/congestion.py). */
void engine_device_on_mark(struct engine_device *device, uint64_t at, uint64_t now);
/* Handle a received CNP. */
void engine_device_on_cnp(struct engine_device *device, uint64_t at, uint64_t now);

/* Ring the doorbell of a queue pair: 0, or -1 if the reference must. */
int engine_device_ring(struct engine_device *device, struct engine_qp *qp);

/* Process packets from `start` on, in a buffer of segments from one sender; returns the bytes taken. */
size_t engine_device_receive(struct engine_device *device, const uint8_t *buffer, size_t length, size_t segment,
			     size_t start, const struct engine_meta *meta, uint64_t now, struct engine_stop_info *info);

/* State of a reliable connection with selective repeat. */
struct engine_expects {
	uint64_t qp; /* offset of its record */
	uint64_t generation; /* generation in its record */
	uint64_t psn; /* the PSN that it expects */
	uint64_t nak_sent; /* it has sent a NAK for that PSN */
};
/* Look up a queue pair by its number. Returns 0, or -1 if it is not such a connection or not served by the engine. */
int engine_device_expects(const struct engine_device *device, uint64_t number, struct engine_expects *expects);

/* Result of processing packets by reference (queue_pair/by_reference.h). */
enum engine_taken {
	TAKEN_ALL, /* processed like packets, possibly as duplicates or as beyond a gap */
	TAKEN_PARTIAL, /* only their acknowledgment is processed: handle the stop, then call again with the same */
	TAKEN_REFUSED, /* not pulled: the sender must resend requests with payload; responses are requested again */
	TAKEN_NOTHING, /* no queue pair here: dropped */
};
/* Process such packets for the queue pair that their sender's is connected to. After STOP_MAP_QP, call again with the
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

/* One round of turns. Initialize with zeros and do not change it until engine_device_sent. */
struct engine_sending {
	uint64_t sent; /* of the budget */
	uint64_t qp; /* record of the queue pair whose turn is open, 0 for none */
	uint64_t limit, count, bytes; /* packet budget of the turn; packets and bytes built */
	uint64_t room; /* packets that its requests may use */
	uint32_t step; /* enum engine_step */
	uint32_t deferred_count;
	/* queue pairs whose replies are deferred behind new messages: they get another turn at the end */
	uint64_t deferred[ENGINE_BURSTS];
};

/* Schedule the waiting queue pairs. Stops with a reason in `info`; call it again with the same until STOP_DONE. */
void engine_device_send(struct engine_device *device, uint64_t now, uint64_t budget, struct engine_out *out,
			struct engine_sending *sending, struct engine_stop_info *info);
/* End the round. */
void engine_device_sent(struct engine_device *device, struct engine_sending *sending);

/* Handle expired timers, up to `*most`, which is decremented. Returns the record of a queue pair whose timer the
 * reference must handle, or 0 if no more have expired. */
uint64_t engine_device_due(struct engine_device *device, uint64_t now, uint64_t *most);
/* Return the time of the next engine_device_due, or NEVER. */
uint64_t engine_device_deadline(const struct engine_device *device);

#endif
