/* Congestion control of one queue pair: events for its control, whose answers are its window and the rate of its bucket
 * (cc/control.py, cc/controlled.py). The record's word `control` says which control it is under. */
#ifndef RNIC_ENGINE_CONGESTION_H
#define RNIC_ENGINE_CONGESTION_H

#include "engine.h"
#include "queue_pair/arithmetic.h"

/* Set how many packets may be in flight, and after how many one asks for an ACK. */
static inline void engine_window_resize(const struct engine_shared *shared, struct queue_pair *record, uint64_t packets)
{
	record->window = packets;
	record->ack_every = greater(1, lesser(shared->ack_every, packets / INFLIGHT_ACKS_A_WINDOW));
}

/* A control that the engine knows: an entry is NULL where it does not react. Its state is the record's words. */
struct engine_control {
	void (*begin)(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
	void (*on_ack)(const struct engine_shared *shared, struct queue_pair *record, const struct engine_ack *ack);
	void (*on_cnp)(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
	void (*on_loss)(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
	void (*on_timer)(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
	void (*on_sent)(const struct engine_shared *shared, struct queue_pair *record, uint64_t bytes);
	int lazy; /* on_timer comes before a packet leaves, not at control_ns */
};

/* Return whether the engine can tell the control of a queue pair of its events. */
int engine_congestion_known(const struct engine_shared *shared, const struct queue_pair *record);
/* Return whether the engine can send its requests: as far as their rate goes. */
int engine_congestion_may_send(const struct engine_shared *shared, const struct queue_pair *record);
/* Tell the control of packets that were acknowledged; `rtt_ns` is 0 without a measured round trip. */
void engine_congestion_acked(const struct engine_shared *shared, struct queue_pair *record, uint64_t packets,
			     uint64_t rtt_ns, uint64_t now);
/* Tell it of a loss. */
void engine_congestion_lost(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
/* React to a CNP; `packet` is the size of the largest packet in bytes. Returns the counters that go up, as bits. */
enum engine_cnp { CNP_BEGAN = 1, CNP_PACED = 2, CNP_LOWERED = 4 };
int engine_congestion_notified(const struct engine_shared *shared, struct queue_pair *record, uint64_t packet,
			       uint64_t now);
/* Call its timer, which is due; returns whether more may be in flight than before. */
int engine_congestion_timer(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
/* Call the timer of a control that wants it before a packet leaves. */
void engine_congestion_catch_up(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
/* Take `bytes`, which have left, from the bucket, and tell the control. */
void engine_congestion_sent(const struct engine_shared *shared, struct queue_pair *record, uint64_t bytes);

#endif
