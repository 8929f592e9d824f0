/* Congestion control of one queue pair: pass events to its control, which sets the window and the rate of the token
 * bucket (cc/control.py, cc/controlled.py). The record's word `control` selects the control. */
#ifndef RNIC_ENGINE_CONGESTION_H
#define RNIC_ENGINE_CONGESTION_H

#include "engine.h"
#include "queue_pair/arithmetic.h"

/* Set the window in packets, and the interval of ACK requests. */
static inline void engine_window_resize(const struct engine_shared *shared, struct queue_pair *record, uint64_t packets)
{
	record->window = packets;
	record->ack_every = greater(1, lesser(shared->ack_every, packets / INFLIGHT_ACKS_A_WINDOW));
}

/* A control implemented in the engine: an entry is NULL if it ignores the event. Its state is in the record. */
struct engine_control {
	void (*begin)(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
	void (*on_ack)(const struct engine_shared *shared, struct queue_pair *record, const struct engine_ack *ack);
	void (*on_cnp)(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
	void (*on_loss)(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
	void (*on_timer)(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
	void (*on_sent)(const struct engine_shared *shared, struct queue_pair *record, uint64_t bytes);
	int lazy; /* on_timer is called before a packet is sent, not at control_ns */
};

/* Return whether the engine can pass events to a queue pair's control. */
int engine_congestion_known(const struct engine_shared *shared, const struct queue_pair *record);
/* Return whether the engine can send its requests with regard to rate control. */
int engine_congestion_may_send(const struct engine_shared *shared, const struct queue_pair *record);
/* Report acknowledged packets to the control; `rtt_ns` is 0 without a measured round trip. */
void engine_congestion_acked(const struct engine_shared *shared, struct queue_pair *record, uint64_t packets,
			     uint64_t rtt_ns, uint64_t now);
/* Report a loss. */
void engine_congestion_lost(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
/* React to a CNP; `packet` is the size of the largest packet in bytes. Returns the counters to increment, as bits. */
enum engine_cnp { CNP_BEGAN = 1, CNP_PACED = 2, CNP_LOWERED = 4 };
int engine_congestion_notified(const struct engine_shared *shared, struct queue_pair *record, uint64_t packet,
			       uint64_t now);
/* Call its expired timer; returns whether the window grew. */
int engine_congestion_timer(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
/* Call the timer of a lazy control before a packet is sent. */
void engine_congestion_catch_up(const struct engine_shared *shared, struct queue_pair *record, uint64_t now);
/* Take sent `bytes` from the token bucket, and report them to the control. */
void engine_congestion_sent(const struct engine_shared *shared, struct queue_pair *record, uint64_t bytes);

#endif
