/* Telemetry of packets: times, marks and queues, echoed by responses. */
#include "fabric.h"
#include "queue_pair/bth.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/packet.h"

#include <stdlib.h>

int fabric_telemetry_clear(struct fabric *fabric, uint32_t packet)
{
	if (fabric->telemetry_room < fabric->packet_room) {
		struct fabric_telemetry *grown =
			realloc(fabric->telemetry, fabric->packet_room * sizeof *fabric->telemetry);
		if (!grown)
			return -1;
		fabric->telemetry = grown;
		fabric->telemetry_room = fabric->packet_room;
	}
	fabric->telemetry[packet].known = 0;
	return 0;
}

/* Return the place of a queue pair's last telemetry at a host, or NULL without memory. */
static struct fabric_telemetry *echo_of(struct fabric_host *host, uint64_t number)
{
	uint64_t count = (uint64_t)1 << host->device->log_qps;
	if (!host->echoes)
		host->echoes = calloc(count, sizeof *host->echoes);
	return host->echoes ? &host->echoes[number & (count - 1)] : NULL;
}

void fabric_telemetry_begin(struct fabric *fabric, uint32_t at, uint32_t packet, uint64_t number)
{
	struct fabric_telemetry *own = &fabric->telemetry[packet];
	if (opcode_rows[fabric->packets[packet].header[0]].flags & ROW_RESPONSE) {
		const struct fabric_telemetry *echo = echo_of(&fabric->hosts[at], number);
		if (echo && echo->known)
			*own = *echo;
		own->response = 1;
	} else {
		own->known = 1;
		own->response = 0;
		own->hops = 0;
	}
}

void fabric_telemetry_left(struct fabric *fabric, const struct fabric_port *port, uint32_t packet)
{
	struct fabric_telemetry *own = &fabric->telemetry[packet];
	if (!own->known)
		return;
	if (port->number == FABRIC_NONE) {
		if (own->response)
			own->left_ns = fabric->now;
		else
			own->sent_ns = fabric->now;
	} else if (!own->response && own->hops < FABRIC_HOPS) {
		own->hop[own->hops++] =
			(struct fabric_hop){ fabric->now, port->queued_bytes, port->sent_bytes, port->bits_s };
	}
}

void fabric_telemetry_arrive(struct fabric *fabric, uint32_t at, uint32_t number)
{
	const struct fabric_packet *packet = &fabric->packets[number];
	const struct fabric_telemetry *own = &fabric->telemetry[number];
	fabric->arrived = NULL;
	if (!own->known)
		return;
	if (own->response) {
		fabric->arrived = own;
		return;
	}
	struct fabric_telemetry *echo = echo_of(&fabric->hosts[at], be_load(packet->header + DQPN_AT, 3));
	if (!echo)
		return;
	*echo = *own;
	echo->arrived_ns = fabric->now;
	echo->ecn = packet->ce;
}
