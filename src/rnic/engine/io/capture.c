#if defined(__linux__)
#define _GNU_SOURCE
#include "io/capture.h"

#include "io/nocancel.h"
#include "queue_pair/arithmetic.h"

#include <netinet/in.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define POSITION (CAPTURE_BYTES - 1u)
#define RECORD_BYTES sizeof(struct capture_record)
#define NAP_NS 50000u /* between two checks whether a full ring has room again */

_Static_assert((CAPTURE_BYTES & (CAPTURE_BYTES - 1u)) == 0, "a power of two");

static _Atomic uint64_t *atomic_word(uint64_t *field)
{
	return (_Atomic uint64_t *)(void *)field;
}

static uint64_t load_word(uint64_t *field)
{
	return atomic_load_explicit(atomic_word(field), memory_order_acquire);
}

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void capture_init(struct capture *capture, uint8_t *memory, const uint8_t *address, uint32_t address_bytes,
		  const uint16_t *source_ports, uint32_t source_port_count)
{
	*capture = (struct capture){
		.ring = (struct capture_ring *)(void *)memory,
		.records = memory + CAPTURE_AT,
		.address = address,
		.address_bytes = address_bytes,
		.source_ports = source_ports,
		.source_port_count = source_port_count,
	};
}

/* Return whether `size` bytes fit into the ring. */
static int has_room(struct capture *capture, uint64_t size)
{
	uint64_t used = capture->head - load_word(&capture->ring->tail);

	return used <= CAPTURE_BYTES && size <= CAPTURE_BYTES - used;
}

/* Wait for room if requested, while the recorder takes records; returns whether there is room. */
static int wait_for_room(struct capture *capture, uint64_t size)
{
	uint64_t tail = load_word(&capture->ring->tail), since = 0;
	const struct timespec nap = { 0, NAP_NS };

	while (!has_room(capture, size)) {
		uint64_t now, taken = load_word(&capture->ring->tail);
		if (!load_word(&capture->ring->waits) || capture->gave_up_at == taken + 1)
			return 0;
		now = read_clock(CLOCK_MONOTONIC);
		if (taken != tail || !since) {
			tail = taken;
			since = now;
		}
		if (now - since > CAPTURE_WAIT_NS) {
			capture->gave_up_at = taken + 1;
			return 0;
		}
		int before = nocancel_begin();
		nanosleep(&nap, NULL);
		nocancel_end(before);
	}
	capture->gave_up_at = 0;
	return 1;
}

/* Copy at most `kept` bytes of each packet. */
static void copy_packets(uint8_t *to, const uint8_t *bytes, size_t length, uint32_t segment, uint64_t kept)
{
	if (kept >= segment) {
		memcpy(to, bytes, length);
		return;
	}
	for (size_t at = 0; at < length; at += segment, to += kept)
		memcpy(to, bytes + at, lesser(kept, length - at));
}

static void put(struct capture *capture, struct capture_record *record, const uint8_t *name, const uint8_t *bytes)
{
	uint64_t snap = load_word(&capture->ring->snap), segment = record->segment, length = record->length;
	uint64_t last = length % segment ? length % segment : segment, packets = ceil_div(length, segment);
	uint64_t kept = lesser(snap, segment);

	record->bytes = (packets - 1) * kept + lesser(kept, last);
	uint64_t size = (RECORD_BYTES + record->bytes + RECORD_BYTES - 1) & ~(uint64_t)(RECORD_BYTES - 1);
	uint64_t offset = capture->head & POSITION, behind = CAPTURE_BYTES - offset;
	if (!wait_for_room(capture, size + (behind < size ? behind : 0))) {
		capture->ring->dropped += packets;
		return;
	}
	if (behind < size) {
		const struct capture_record padding = { .bytes = behind - RECORD_BYTES, .kind = CAPTURE_PADDING };
		memcpy(capture->records + offset, &padding, RECORD_BYTES);
		capture->head += behind;
		offset = 0;
	}
	memcpy(&record->name_0, name, UDP_NAME_BYTES);
	memcpy(capture->records + offset, record, RECORD_BYTES);
	copy_packets(capture->records + offset + RECORD_BYTES, bytes, length, (uint32_t)segment, kept);
	capture->head += size;
	atomic_store_explicit(atomic_word(&capture->ring->head), capture->head, memory_order_release);
}

void capture_sent(struct capture *capture, const struct tx_path *path, const uint8_t *bytes, size_t length,
		  uint32_t segment)
{
	struct capture_record record = {
		.kind = CAPTURE_SENT,
		.time_ns = read_clock(CLOCK_REALTIME),
		.length = length,
		.segment = segment,
		.flow_label = path->flow_label,
		.tclass = (uint64_t)path->tclass,
		.hop_limit = (uint64_t)path->hop_limit,
		.name_bytes = path->name_bytes,
		.source_port = path->source_port,
	};

	if (length && segment)
		put(capture, &record, path->name, bytes);
}

static int is_source_port(const struct capture *capture, uint16_t port)
{
	for (uint32_t i = 0; i < capture->source_port_count; i++)
		if (capture->source_ports[i] == port)
			return 1;
	return 0;
}

/* Return whether packets came from this device's own address and source ports. */
static int is_own(const struct capture *capture, const struct rx_buffer *rx)
{
	struct sockaddr_in from;
	struct sockaddr_in6 from6;

	if (capture->address_bytes == 4 && rx->name_bytes == sizeof from) {
		memcpy(&from, rx->name, sizeof from);
		return !memcmp(&from.sin_addr, capture->address, 4) && is_source_port(capture, ntohs(from.sin_port));
	}
	if (capture->address_bytes == 16 && rx->name_bytes == sizeof from6) {
		memcpy(&from6, rx->name, sizeof from6);
		return !memcmp(&from6.sin6_addr, capture->address, 16) &&
		       is_source_port(capture, ntohs(from6.sin6_port));
	}
	return 0;
}

void capture_received(struct capture *capture, const struct rx_buffer *rx)
{
	struct capture_record record = {
		.kind = CAPTURE_RECEIVED,
		.length = rx->size,
		.segment = rx->segment,
		.flow_label = rx->flow_label,
		.tclass = rx->tclass,
		.hop_limit = rx->hop_limit,
		.name_bytes = rx->name_bytes,
	};

	if (!rx->size || !rx->segment || is_own(capture, rx))
		return;
	record.time_ns = read_clock(CLOCK_REALTIME);
	put(capture, &record, rx->name, rx->buffer);
}
#endif
