/* The rules of a fault script (link/fault_rules.py), in the table made by the NIC process: which packets they match.
 * They count in memory shared with the reference (state/fault_table.py). */
#ifndef RNIC_ENGINE_FAULT_RULES_H
#define RNIC_ENGINE_FAULT_RULES_H

#include "queue_pair/by_reference.h"
#include "state.h"

#include <stddef.h>
#include <stdint.h>

/* Fields of a packet that rules match. A field beyond the end of a short packet is -1. */
struct fault_facts {
	uint32_t direction; /* FAULT_TX or FAULT_RX */
	int32_t opcode, dqpn, psn, syndrome;
	int32_t ackreq;
	uint64_t length; /* of the UDP payload */
	uint32_t address_bytes;
	int comes_back; /* the device sends it to itself and judges it again on arrival */
	const uint8_t *source, *destination;
};

/* Faults of a packet: a bit for each action, 1 << FAULT_DROP and so on, and the parameters of each. */
struct fault_verdict {
	uint32_t actions;
	const struct fault_rule *told[FAULT_ACTIONS];
	uint64_t draw; /* draw of the corrupting rule */
};

struct fault_rules {
	const struct fault_table *table; /* the NIC process's */
	const struct fault_rule *rules;
	struct fault_count *counts; /* FAULT_COUNTS of them */
	uint64_t directions; /* directions of the rules, a bit for each */
	struct fault_facts last; /* flow of `flow_hash` */
	uint8_t last_addresses[32];
	uint64_t flow_hash;
};

/* Begin with a table of FAULT_TABLE_BYTES. */
void fault_rules_init(struct fault_rules *rules, const uint8_t *table, uint8_t *counts);
/* Return the number of rules, limited to the size of the table. */
uint64_t fault_rules_count(const struct fault_rules *rules);
/* Read the fields from a packet's first bytes; the caller sets direction, addresses and comes_back. */
void fault_facts_read(struct fault_facts *facts, const uint8_t *packet, uint64_t length);
/* Count the packet for each rule that it matches, and return its faults. */
struct fault_verdict fault_rules_judge(struct fault_rules *rules, const struct fault_facts *facts);
/* Corrupt a packet of `length` bytes as the rule says. */
void fault_corrupt(const struct fault_verdict *verdict, uint8_t *packet, uint64_t length);
/* Judge the packets that a record replaces. Returns 0, or -1 if any of them would be faulted: then none is counted, and
 * they must be judged as packets. `facts` has direction, addresses and comes_back. */
int fault_rules_pass(struct fault_rules *rules, const struct engine_by_reference *by_reference, uint64_t mtu,
		     struct fault_facts *facts);

#endif
