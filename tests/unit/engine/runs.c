/* Messages whose middles are made a burst at a time against the same made packet by packet, which is how it goes where no CRC
 * copies: every byte, every burst, what is left of the message and of its queue pair, whatever memory it lies in, and where a
 * page of that is gone. Prints how many packets were the same, and of how many messages a page was gone. */
#define _GNU_SOURCE
#include "queue_pair/requester.c"

#include "queue_pair/crc32.h"
#include "memory/fault_guard.h"
#include "memory/backends.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MESSAGES = 4000, PAGE = 4096, LONGEST = 1 << 20, START = 0x5000, WIRE = 2 * LONGEST, BURSTS = 4096 };
enum { IN_THE_RING, AT_HAND, GUARDED, WAYS };

#define ANY(list) ((list)[(unsigned)rand() % (sizeof(list) / sizeof *(list))])
#define UP_TO(most) ((uint64_t)rand() % (most))

/* One of the two ways to make them. */
static struct maker {
	struct engine_shared port;
	struct engine_icrc_cache heads[ENGINE_ICRC_CACHE];
	struct engine_out out;
	struct queue_pair record;
	struct send_wqe slot;
	enum made how;
	uint64_t done, sent, bursts;
	struct engine_burst burst[BURSTS];
	uint8_t bytes[LONGEST], wire[WIRE];
} makers[2];

static void take(struct maker *maker)
{
	struct engine_out *out = &maker->out;

	for (uint32_t i = 0; i < out->count; i++) {
		struct engine_burst burst = out->bursts[i];
		memcpy(maker->wire + maker->sent, out->bytes + burst.offset, burst.length);
		maker->sent += burst.length;
		burst.offset = 0; /* by when it was carried away */
		maker->burst[maker->bursts++] = burst;
	}
	out->carried += out->used;
	out->used = out->count = out->open = 0;
}

static void carry(struct engine_out *out)
{
	take(out == &makers[1].out ? &makers[1] : &makers[0]);
}

static int differ(void)
{
	const struct maker *one = &makers[0], *other = &makers[1];

	return one->done != other->done || one->how != other->how || one->sent != other->sent ||
	       one->bursts != other->bursts || memcmp(one->wire, other->wire, one->sent) ||
	       memcmp(one->burst, other->burst, one->bursts * sizeof *one->burst) ||
	       memcmp(&one->slot, &other->slot, sizeof one->slot) ||
	       memcmp(&one->record, &other->record, sizeof one->record);
}

int main(void)
{
	static const uint64_t mtus[] = { 128, 256, 512, 998, 1000, 1024, 2048, 4096 },
			      segments[] = { 1, 2, 15, 63, 64, 100 };
	static const uint64_t opcodes[] = { WR_SEND, WR_SEND_IMM, WR_WRITE, WR_WRITE_IMM };
	static struct memory_key key = { .valid = 1, .start = START, .end = START + LONGEST };
	static uint8_t qpc[QPC_SIZE];
	uint8_t *message = mmap(NULL, LONGEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct own_process own = { .pid = getpid() };
	const struct engine_segment segment = { &guarded_process, &own };
	unsigned long packets_made = 0, gone = 0;

	if (message == MAP_FAILED || fault_guard_install())
		return 2;
	key.base = (uintptr_t)message;
	for (size_t i = 0; i < LONGEST; i++)
		message[i] = (uint8_t)rand();
	for (unsigned i = 0; i < MESSAGES; i++) {
		uint64_t mtu = ANY(mtus), packets = 1 + UP_TO(120), length = (packets - 1) * mtu + 1 + UP_TO(mtu),
			 first = UP_TO(packets);
		uint64_t service = UP_TO(2) ? SERVICE_UC : 0, ack_every = 1 + UP_TO(20), psn = PSN_MASK - UP_TO(60),
			 before = UP_TO(3);
		uint64_t count = 1 + UP_TO(packets - first), max_segments = ANY(segments), opcode = ANY(opcodes),
			 way = UP_TO(WAYS);
		int ask = !service && count < packets - first && UP_TO(2), keeps = UP_TO(2) != 0,
		    carries = UP_TO(2) != 0;
		uint8_t *page = way == GUARDED && UP_TO(2) ? message + UP_TO(length) / PAGE * PAGE : NULL;
		const struct engine_mapping reach = way == AT_HAND ? (struct engine_mapping){ .bytes = message } :
								     (struct engine_mapping){ .segment = &segment };
		const struct engine_flow flow = {
			{ 10, [3] = (uint8_t)UP_TO(3) }, { 10, [3] = 2 }, 49152, 4791, UP_TO(2) ? 4 : 16
		};
		struct sge_list sges = { .length = length };

		if (length > LONGEST)
			continue;
		if (way == IN_THE_RING) {
			sges.bytes = message;
		} else {
			sges.count = 1;
			sges.entries[0] = (struct sge){ &key, START, length };
		}
		if (page)
			mprotect(page, PAGE, PROT_NONE);
		for (struct maker *maker = makers; maker < makers + 2; maker++) {
			const struct origin there = { 0 };

			maker->port = (struct engine_shared){
				.keys = &key,
				.reach = &reach,
				.key_count = 1,
				.crc = engine_crc32,
				.crc_copy = maker == makers ? NULL : engine_crc32_copy,
				.icrc_cache = keeps ? maker->heads : NULL,
			};
			maker->record = (struct queue_pair){ .mtu = mtu,
							     .ack_every = ack_every,
							     .service = service,
							     .head = 0x0040FFFF00000000,
							     .sent_psn = psn };
			maker->slot = (struct send_wqe){ .entry_0 = opcode << 32,
							 .entry_2 = 77,
							 .first_psn = psn,
							 .packets = packets,
							 .sent = first };
			maker->out = (struct engine_out){ .bytes = maker->bytes,
							  .room = LONGEST,
							  .max_segments = max_segments,
							  .carry = carries ? carry : NULL };
			maker->sent = maker->bursts = 0;
			struct engine_qp qp = { .qpc = qpc, .record = &maker->record, .flow = flow };
			for (uint64_t k = 0; k < before; k++) { /* a burst may be open already */
				uint8_t *frame = engine_packet_begin(&maker->out, BTH_BYTES, mtu, 1);
				memset(frame, 0x11, BTH_BYTES + mtu);
				engine_packet_fill(&maker->out, &maker->port, &flow, frame, BTH_BYTES, &there, mtu);
			}
			maker->done =
				send_data(&maker->port, &qp, &maker->slot, &sges, count, ask, &maker->out, &maker->how);
			take(maker);
		}
		if (page)
			mprotect(page, PAGE, PROT_READ | PROT_WRITE);
		if (differ()) {
			printf("different: message %u, %lu packets of %lu bytes, way %lu\n", i, packets, mtu, way);
			return 1;
		}
		packets_made += makers[1].done;
		gone += makers[1].how == UNREAD;
	}
	printf("%lu %lu\n", packets_made, gone);
	return 0;
}
