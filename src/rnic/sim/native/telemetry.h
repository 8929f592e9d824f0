/* Telemetry of packets, for congestion controls that ask for it (rnic.sim.telemetry is the reference). */
#ifndef RNIC_FABRIC_TELEMETRY_H
#define RNIC_FABRIC_TELEMETRY_H

#include <stdint.h>

struct fabric;
struct fabric_packet;
struct fabric_port;

#define FABRIC_HOPS 8u

/* State of a switch port when the packet left it. */
struct fabric_hop {
	uint64_t time, queued_bytes, sent_bytes, bits_s;
};

/* Telemetry of a packet: a request carries its own, a response that of the last request received by its sender. */
struct fabric_telemetry {
	uint64_t sent_ns, arrived_ns, left_ns; /* the request left its NIC and arrived, the response left its NIC */
	uint32_t hops;
	uint8_t known, response, ecn;
	struct fabric_hop hop[FABRIC_HOPS];
};

/* Clear the telemetry of a new packet. Returns 0, or -1 without memory. */
int fabric_telemetry_clear(struct fabric *fabric, uint32_t packet);
/* Begin the telemetry of a packet that a host made for this queue pair. */
void fabric_telemetry_begin(struct fabric *fabric, uint32_t host, uint32_t packet, uint64_t number);
/* Record that a packet has left a port. */
void fabric_telemetry_left(struct fabric *fabric, const struct fabric_port *port, uint32_t packet);
/* Take the telemetry of an arriving packet; `arrived` of the fabric is that of a response. */
void fabric_telemetry_arrive(struct fabric *fabric, uint32_t host, uint32_t packet);

#endif
