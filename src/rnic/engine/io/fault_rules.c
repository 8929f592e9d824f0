#include "io/fault_rules.h"

#include "queue_pair/bth.h"
#include "queue_pair/byteorder.h"

#include <string.h>

#define ACK_REQ_BIT 0x80u
#define NO_CREDITS 0x1Fu /* syndrome of by-reference responses */
#define UNCOVERED_BYTE 4u /* FECN, BECN and reserved bits, which the ICRC does not cover */
#define SPOT 0xC0u /* mixed into a draw to select the bit to flip: link/fault_rules.py */

_Static_assert((FAULT_COUNTS & (FAULT_COUNTS - 1)) == 0, "a power of two");

/* Mix two words into 64 bits (the finalizer of SplitMix64). */
static uint64_t mix(uint64_t state, uint64_t word)
{
	state = (state ^ word) + 0x9e3779b97f4a7c15u;
	state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
	state = (state ^ state >> 27) * 0x94d049bb133111ebu;
	return state ^ state >> 31;
}

void fault_rules_init(struct fault_rules *rules, const uint8_t *table, uint8_t *counts)
{
	*rules = (struct fault_rules){
		.table = (const struct fault_table *)(const void *)table,
		.rules = (const struct fault_rule *)(const void *)(table + FAULT_RULES_AT),
		.counts = (struct fault_count *)(void *)counts,
	};
	for (uint64_t number = 0; number < fault_rules_count(rules); number++)
		rules->directions |= rules->rules[number].directions;
}

uint64_t fault_rules_count(const struct fault_rules *rules)
{
	return rules->table->rules < FAULT_RULES ? rules->table->rules : FAULT_RULES;
}

void fault_facts_read(struct fault_facts *facts, const uint8_t *packet, uint64_t length)
{
	facts->length = length;
	facts->opcode = facts->dqpn = facts->psn = facts->syndrome = -1;
	facts->ackreq = 0;
	if (length < BTH_BYTES)
		return;
	facts->opcode = packet[0];
	facts->dqpn = (int32_t)be_load(packet + DQPN_AT, 3);
	facts->psn = (int32_t)be_load(packet + PSN_AT, 3);
	facts->ackreq = (packet[ACK_REQ_AT] & ACK_REQ_BIT) != 0;
	if (opcode_rows[packet[0]].flags & ROW_AETH && length > BTH_BYTES)
		facts->syndrome = packet[BTH_BYTES];
}

static uint64_t address_word(const uint8_t *address, uint32_t bytes, uint32_t half)
{
	if (bytes == 4)
		return half ? 0 : be_load(address, 4);
	return be_load(address + (size_t)8 * half, 8);
}

/* Return a 64-bit hash of a packet's direction and queue pair. */
static uint64_t hash_flow(struct fault_rules *rules, const struct fault_facts *facts)
{
	struct fault_facts *last = &rules->last;
	uint32_t bytes = facts->address_bytes;
	uint64_t state;

	if (last->address_bytes == bytes && last->direction == facts->direction && last->dqpn == facts->dqpn &&
	    !memcmp(rules->last_addresses, facts->source, bytes) &&
	    !memcmp(rules->last_addresses + 16, facts->destination, bytes))
		return rules->flow_hash;
	state = mix(mix(0, facts->direction), (uint64_t)(int64_t)facts->dqpn);
	for (uint32_t half = 0; half < 2; half++)
		state = mix(state, address_word(facts->source, bytes, half));
	for (uint32_t half = 0; half < 2; half++)
		state = mix(state, address_word(facts->destination, bytes, half));
	*last = *facts;
	memcpy(rules->last_addresses, facts->source, bytes);
	memcpy(rules->last_addresses + 16, facts->destination, bytes);
	return rules->flow_hash = state;
}

static int has_bit(const uint64_t *words, int32_t number)
{
	return number >= 0 && (words[number >> 6] >> (number & 63) & 1);
}

static int is_address(const uint8_t *address, uint32_t bytes, const uint64_t *wanted)
{
	return !wanted[0] || (wanted[0] == bytes && wanted[1] == address_word(address, bytes, 0) &&
			      wanted[2] == address_word(address, bytes, 1));
}

static int matches(const struct fault_rule *rule, const struct fault_facts *facts)
{
	uint64_t flags = rule->flags, dqpn = (uint64_t)(int64_t)facts->dqpn;

	if (!(rule->directions >> facts->direction & 1) || (facts->comes_back && !(flags & FAULT_NAMES_DIRECTION)))
		return 0;
	if (!rule->opcode_any && !has_bit(&rule->opcodes_0, facts->opcode))
		return 0;
	if (flags & FAULT_HAS_PSN &&
	    (facts->psn < 0 || (((uint64_t)facts->psn - rule->psn_low) & PSN_MASK) > rule->psn_span))
		return 0;
	if (dqpn < rule->dqpn_low || dqpn > rule->dqpn_high)
		return 0;
	if (facts->length < rule->length_low || facts->length > rule->length_high)
		return 0;
	if (flags & FAULT_HAS_ACKREQ && facts->ackreq != ((flags & FAULT_ACKREQ) != 0))
		return 0;
	if (flags & FAULT_HAS_SYNDROME && !has_bit(&rule->syndromes_0, facts->syndrome))
		return 0;
	return is_address(facts->source, facts->address_bytes, &rule->src_bytes) &&
	       is_address(facts->destination, facts->address_bytes, &rule->dst_bytes);
}

static struct fault_count *find_count(struct fault_rules *rules, uint64_t key)
{
	struct fault_count *count;

	key = key ? key : 1;
	for (uint64_t probe = 0; probe < FAULT_COUNT_PROBES; probe++) {
		count = &rules->counts[(key + probe) & (FAULT_COUNTS - 1)];
		if (count->draw == key)
			return count;
		if (!count->draw)
			break;
	}
	if (count->draw)
		count = &rules->counts[key & (FAULT_COUNTS - 1)];
	*count = (struct fault_count){ .draw = key };
	return count;
}

/* Return whether a rule applies to the `seen`th matching packet. */
static int chooses(const struct fault_rule *rule, uint64_t seen, uint64_t drawn)
{
	if (rule->flags & FAULT_HAS_PROBABILITY)
		return drawn < rule->below;
	if (!rule->every)
		return !rule->nth || seen == rule->nth;
	uint64_t first = rule->nth ? rule->nth : rule->every;
	return seen >= first && (seen - first) % rule->every == 0;
}

/* Return a rule's generator state and count for a queue pair. */
static struct fault_count *count_of(struct fault_rules *rules, uint64_t number, const struct fault_facts *facts,
				    uint64_t *draw)
{
	*draw = mix(rules->rules[number].seed, hash_flow(rules, facts));
	return find_count(rules, mix(*draw, number));
}

struct fault_verdict fault_rules_judge(struct fault_rules *rules, const struct fault_facts *facts)
{
	struct fault_verdict verdict = { 0 };

	for (uint64_t number = 0, all = fault_rules_count(rules); number < all; number++) {
		const struct fault_rule *rule = &rules->rules[number];
		if (rule->action >= FAULT_ACTIONS || !matches(rule, facts))
			continue;
		uint64_t draw;
		struct fault_count *count = count_of(rules, number, facts, &draw);
		uint64_t drawn = mix(draw, ++count->seen);
		if ((rule->times && count->acted == rule->times) || !chooses(rule, count->seen, drawn))
			continue;
		count->acted++;
		verdict.actions |= 1u << rule->action;
		verdict.told[rule->action] = rule;
		if (rule->action == FAULT_CORRUPT)
			verdict.draw = drawn;
	}
	return verdict;
}

void fault_corrupt(const struct fault_verdict *verdict, uint8_t *packet, uint64_t length)
{
	const struct fault_rule *rule = verdict->told[FAULT_CORRUPT];
	uint64_t at, xor = rule->xor, spot = mix(verdict->draw, SPOT);

	if (rule->flags & FAULT_HAS_BYTE) {
		at = rule->byte >> 63 ? length + rule->byte : rule->byte; /* negative: from the end */
	} else {
		at = spot % (length > 1 ? length - 1 : 1);
		at += at >= UNCOVERED_BYTE;
		xor = 1u << (spot >> 61);
	}
	if (at < length)
		packet[at] ^= (uint8_t)xor;
}

/* ------------------------------------------------------------------ packets by reference */

/* Return the opcode of a packet that a record replaces. */
static uint32_t opcode_in_run(const struct engine_by_reference *by_reference, uint32_t index)
{
	uint16_t flags = opcode_rows[by_reference->operation & 0xFF].flags;
	uint32_t base = flags & ROW_READ_RESPONSE ? BTH_READ_RESPONSE_FIRST :
			flags & ROW_WRITE	  ? BTH_WRITE_FIRST :
						    BTH_SEND_FIRST;
	int first = flags & ROW_START && !index, last = flags & ROW_END && index + 1 == by_reference->packets;

	if (by_reference->packets == 1)
		return by_reference->operation;
	if (first)
		return base;
	if (!last)
		return base + 1;
	return base + 2 + ((flags & ROW_IMMDT) != 0);
}

/* Set the facts of packet `index` of a run. */
static void facts_in_run(struct fault_facts *facts, const struct engine_by_reference *by_reference, uint32_t index,
			 uint64_t mtu)
{
	uint32_t opcode = opcode_in_run(by_reference, index), last = index + 1 == by_reference->packets;
	const struct opcode_row *row = &opcode_rows[opcode & 0xFF];
	uint64_t before = index * mtu, left = by_reference->bytes > before ? by_reference->bytes - before : 0;

	facts->opcode = (int32_t)(opcode & 0xFF);
	facts->dqpn = (int32_t)(by_reference->destination & 0xFFFFFF);
	facts->psn = (int32_t)((by_reference->psn + index) & PSN_MASK);
	facts->syndrome = row->flags & ROW_AETH ? (int32_t)(AETH_ACK | NO_CREDITS) : -1;
	facts->ackreq = last && by_reference->flags & BY_REFERENCE_ACK_REQ;
	facts->length = row->header_bytes + (((left < mtu ? left : mtu) + 3) & ~(uint64_t)3) + ICRC_BYTES;
}

/* Return whether a rule, which has counted `seen` so far, would apply to any packet of the run. */
static int strikes_run(struct fault_rules *rules, uint64_t number, const struct engine_by_reference *by_reference,
		       uint64_t mtu, struct fault_facts *facts, int commit)
{
	const struct fault_rule *rule = &rules->rules[number];
	struct fault_count *count = NULL;
	uint64_t draw = 0, seen = 0;

	for (uint32_t index = 0; index < by_reference->packets; index++) {
		facts_in_run(facts, by_reference, index, mtu);
		if (!matches(rule, facts))
			continue;
		if (!count) {
			count = count_of(rules, number, facts, &draw);
			seen = count->seen;
		}
		seen++;
		if (!(rule->times && count->acted == rule->times) && chooses(rule, seen, mix(draw, seen)))
			return 1;
	}
	if (commit && count)
		count->seen = seen;
	return 0;
}

int fault_rules_pass(struct fault_rules *rules, const struct engine_by_reference *by_reference, uint64_t mtu,
		     struct fault_facts *facts)
{
	uint64_t all = fault_rules_count(rules);

	for (int commit = 0; commit < 2; commit++)
		for (uint64_t number = 0; number < all; number++)
			if (rules->rules[number].action < FAULT_ACTIONS &&
			    strikes_run(rules, number, by_reference, mtu, facts, commit))
				return -1;
	return 0;
}
