/* What tests/unit/engine/test_fault_rules.py calls. */
#include "io/fault_rules.h"
/* Judge a packet, harm it if a rule says so, and return the actions that struck it. */
uint32_t judge(const uint8_t *table, uint8_t *counts, uint32_t direction, int comes_back, uint8_t *packet,
	       uint64_t length, const uint8_t *source, const uint8_t *destination, uint32_t address_bytes)
{
	struct fault_rules rules;
	struct fault_facts facts = { .direction = direction,
				     .comes_back = comes_back,
				     .source = source,
				     .destination = destination,
				     .address_bytes = address_bytes };
	fault_rules_init(&rules, table, counts);
	fault_facts_read(&facts, packet, length);
	struct fault_verdict verdict = fault_rules_judge(&rules, &facts);
	if (verdict.actions >> FAULT_CORRUPT & 1)
		fault_corrupt(&verdict, packet, length);
	return verdict.actions;
}
/* Judge the packets that a run without its bytes stands for. */
int run(const uint8_t *table, uint8_t *counts, uint32_t operation, uint32_t psn, uint32_t packets, uint64_t bytes,
	uint64_t mtu, uint32_t flags, const uint8_t *address)
{
	struct fault_rules rules;
	struct fault_facts facts = {
		.direction = FAULT_RX, .source = address, .destination = address, .address_bytes = 4
	};
	struct engine_by_reference by_reference = {
		.destination = 5, .psn = psn, .packets = packets, .operation = operation, .flags = flags, .bytes = bytes
	};
	fault_rules_init(&rules, table, counts);
	return fault_rules_pass(&rules, &by_reference, mtu, &facts);
}
