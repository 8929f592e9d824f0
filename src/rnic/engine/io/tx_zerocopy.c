#if defined(__linux__)
#define _GNU_SOURCE
#include "io/tx_zerocopy.h"

#include "io/poll.h"
#include "queue_pair/bth.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/psn.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CREDIT 64u /* sends in a row without a long burst: then none is expected */
#define MOST_A_TURN 1024 /* more than a turn has packets */
#define STALE 4096u /* sheets that were looked for since one was lent: whoever has it takes his time */
/* Of such pages a few make a sheet, and the system has that many less to count. */
#define HUGE_BYTES ((size_t)2 << 20)
#define ALL_BYTES ((size_t)TX_PAGES * TX_PAGE_BYTES)

enum { LENT_NOT, LENT_REQUESTS, LENT_RESPONSES };

struct sheet {
	uint8_t name[UDP_NAME_BYTES]; /* where packets that were on it went */
	uint32_t name_bytes; /* 0 for nowhere yet */
	uint32_t lent; /* what of: these may not have arrived yet, */
	uint64_t owner; /* those of the queue pair with this record, */
	uint64_t until; /* before this PSN */
	uint64_t since; /* `looks` then */
};

struct tx_pages {
	struct tx_splice splice;
	uint8_t *mapped, *bytes; /* of all sheets */
	uint8_t *plain; /* between begin and end: where packets are laid out else; NULL where no long burst is expected */
	struct sheet *current; /* that they are laid out on now, or NULL */
	const struct tx_path *path; /* where these go */
	uint64_t looks; /* for a sheet, so far */
	uint32_t next; /* where that begins */
	uint32_t credit;
	struct sheet all[TX_PAGES];
};

static struct tx_pages *open_sheets(void)
{
	struct tx_pages *sheets = calloc(1, sizeof *sheets);
	if (!sheets)
		return NULL;
	void *mapped = mmap(NULL, ALL_BYTES + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mapped == MAP_FAILED) {
		sheets->splice.broken = 1;
		return sheets;
	}
	sheets->mapped = mapped;
	sheets->bytes = sheets->mapped + (HUGE_BYTES - (uintptr_t)mapped % HUGE_BYTES) % HUGE_BYTES;
	madvise(sheets->bytes, ALL_BYTES, MADV_HUGEPAGE); /* or it is slower */
	tx_splice_open(&sheets->splice);
	return sheets;
}

void tx_pages_close(struct tx_pages *sheets)
{
	if (!sheets)
		return;
	tx_splice_close(&sheets->splice);
	if (sheets->mapped)
		munmap(sheets->mapped, ALL_BYTES + HUGE_BYTES);
	free(sheets);
}

/* ------------------------------------------------------------------ sheets */

static const struct queue_pair *record_of(const struct io_poll *round, uint64_t owner)
{
	return (const struct queue_pair *)(const void *)(round->device->sched.arena + owner);
}

static const uint8_t *context_of(const struct io_poll *round, uint64_t owner)
{
	return round->device->sched.arena + record_of(round, owner)->context;
}

static uint8_t *bytes_of(const struct tx_pages *sheets, const struct sheet *sheet)
{
	return sheets->bytes + (size_t)(sheet - sheets->all) * TX_PAGE_BYTES;
}

/* Whether packets that were on a sheet may be on their way. Requests are until they are acknowledged, or the queue pair has
 * begun anew with other PSNs; its record may lack those of this turn yet. Nobody acknowledges responses, but who asks has no more in flight than this end would. */
static int is_busy(const struct io_poll *round, struct sheet *sheet)
{
	const struct queue_pair *record = record_of(round, sheet->owner);
	int64_t behind;

	if (sheet->lent == LENT_REQUESTS && (psn_diff(sheet->until, record->una) <= 0 ||
					     psn_diff(sheet->until, record->sent_psn) > MOST_A_TURN))
		sheet->lent = LENT_NOT;
	if (sheet->lent == LENT_RESPONSES) {
		behind = psn_diff(be_get(context_of(round, sheet->owner), QPC_EXPECTED_PSN), sheet->until);
		if (behind < 0 || behind >= (int64_t)record->most)
			sheet->lent = LENT_NOT;
	}
	return sheet->lent != LENT_NOT;
}

/* The system gives other pages once they are written to; whoever has those before keeps them as they are. Where it refuses,
 * as for memory that is locked, the sheets are not used again. */
static int renew(struct tx_pages *sheets, struct sheet *sheet)
{
	sheet->name_bytes = sheet->lent = 0;
	if (!madvise(bytes_of(sheets, sheet), TX_PAGE_BYTES, MADV_DONTNEED))
		return 1;
	sheets->splice.broken = 1;
	return 0;
}

static int goes_to(const struct sheet *sheet, const struct tx_path *path)
{
	return sheet->name_bytes == path->name_bytes && !memcmp(sheet->name, path->name, path->name_bytes);
}

/* A sheet for packets to there: one that had such, one that had none, or, with other pages, any that is not busy or has
 * been for very long. NULL where all are. */
static struct sheet *look(struct io_poll *round, const struct tx_path *path)
{
	struct tx_pages *sheets = round->sheets;
	struct sheet *blank = NULL, *other = NULL;

	sheets->looks++;
	for (uint32_t i = 0; i < TX_PAGES; i++) {
		struct sheet *sheet = &sheets->all[(sheets->next + i) % TX_PAGES];
		int busy = is_busy(round, sheet);
		if (!busy && goes_to(sheet, path))
			return sheet;
		if (!busy && !sheet->name_bytes && !blank)
			blank = sheet;
		if (!other && (!busy || sheets->looks - sheet->since > STALE))
			other = sheet;
	}
	return blank ? blank : other && renew(sheets, other) ? other : NULL;
}

/* What is made from now on is laid out on a sheet, for where it goes, if there is one; else, or for NULL, as ever. */
static void lay_out(struct io_poll *round, const struct tx_path *path)
{
	struct tx_pages *sheets = round->sheets;
	struct engine_out *out = &round->out;

	sheets->path = path;
	sheets->current = path && !sheets->splice.broken ? look(round, path) : NULL;
	out->bytes = sheets->plain;
	out->room = POLL_OUT_BYTES;
	if (sheets->current) {
		sheets->next = (uint32_t)(sheets->current - sheets->all);
		out->bytes = bytes_of(sheets, sheets->current);
		out->room = TX_PAGE_BYTES;
	}
}

void tx_pages_forget_qp(struct io_poll *round, uint64_t record)
{
	struct tx_pages *sheets = round->sheets;

	for (uint32_t i = 0; sheets && i < TX_PAGES; i++) {
		struct sheet *sheet = &sheets->all[i];
		if (sheet->lent && sheet->owner == record) /* nobody says any more when these have arrived */
			renew(sheets, sheet);
	}
}

/* ------------------------------------------------------------------ sending */

void tx_pages_begin(struct io_poll *round)
{
	struct tx_pages *sheets = round->sheets;

	if (!sheets || sheets->splice.broken || !sheets->credit)
		return;
	sheets->credit--;
	sheets->plain = round->out.bytes;
}

static int same(const struct tx_path *one, const struct tx_path *other)
{
	return one == other || (one && other && one->name_bytes == other->name_bytes &&
				!memcmp(one->name, other->name, one->name_bytes));
}

void tx_pages_select(struct io_poll *round, const struct queue_pair *record, const struct tx_path *path)
{
	struct tx_pages *sheets = round->sheets;
	uint64_t owner = (uint64_t)((const uint8_t *)record - round->device->sched.arena);

	if (!sheets || !sheets->plain) {
		round->turn = owner;
		return;
	}
	if (record->service || path->wire || path->divert)
		path = NULL;
	int stays = sheets->current && same(sheets->path, path);
	/* so a long burst is of who has the turn, whatever short ones of others lie before it */
	if (round->out.used && (!stays || (owner != round->turn && round->out.used >= TX_PAGE_MIN_BURST)))
		round->out.carry(&round->out);
	round->turn = owner;
	if (!stays)
		lay_out(round, path);
}

/* What of a burst's pages may be lent, and the PSN behind it: requests of a reliable connection, which are acknowledged, or
 * READ responses to a peer of our own. An ACK may have joined them. */
static int lends(const struct io_poll *round, const struct engine_burst *burst, uint64_t *until)
{
	const uint8_t *bytes = round->out.bytes + burst->offset;

	if (burst->length < TX_PAGE_MIN_BURST || burst->count < 2)
		return LENT_NOT;
	for (uint64_t i = burst->count; i-- > burst->count - 2;) {
		const uint8_t *packet = bytes + i * (uint64_t)burst->segment;
		uint16_t flags = opcode_rows[packet[0]].flags;
		if ((packet[0] & BTH_SERVICE_MASK) != SERVICE_RC)
			return LENT_NOT;
		*until = (be_load(packet + PSN_AT, 3) + 1) & PSN_MASK;
		if (flags & (ROW_SEND | ROW_WRITE))
			return LENT_REQUESTS;
		if (flags & ROW_READ_RESPONSE)
			return record_of(round, round->turn)->most && be_get(context_of(round, round->turn), QPC_OPTIONS) & OPT_SELECTIVE_REPEAT
				       ? LENT_RESPONSES : LENT_NOT;
	}
	return LENT_NOT;
}

int tx_pages_transmit(struct io_poll *round)
{
	struct tx_pages *sheets = round->sheets;
	struct engine_out *out = &round->out;

	if (!sheets || !sheets->current)
		return 0;
	struct sheet *sheet = sheets->current;
	for (uint32_t i = 0; i < out->count; i++) {
		const struct engine_burst *burst = &out->bursts[i];
		struct tx_path *path = (struct tx_path *)(uintptr_t)burst->route;
		const uint8_t *bytes = out->bytes + burst->offset;
		uint64_t until;
		int what = lends(round, burst, &until);
		if (what)
			sheets->credit = CREDIT;
		if (sheet->lent && sheet->lent != (uint32_t)what)
			what = LENT_NOT; /* one mark for a sheet */
		if (what && !tx_splice_send(&sheets->splice, path, bytes, burst->length, burst->segment)) {
			memcpy(sheet->name, path->name, sizeof sheet->name);
			sheet->name_bytes = path->name_bytes;
			sheet->lent = (uint32_t)what;
			sheet->owner = round->turn;
			sheet->until = until;
			sheet->since = sheets->looks;
			round->counts.sent += burst->count;
			round->spliced++;
		} else {
			udp_transmit(path, bytes, burst->length, burst->segment, &round->counts);
		}
		round->tx_bytes += burst->length;
		round->sent += burst->count;
	}
	if (sheet->lent)
		lay_out(round, sheets->path);
	return 1;
}

void tx_pages_note_copy(struct io_poll *round, const struct engine_burst *burst)
{
	uint64_t until;

	if (!round->splices || !lends(round, burst, &until))
		return;
	if (!round->sheets)
		round->sheets = open_sheets();
	if (round->sheets)
		round->sheets->credit = CREDIT;
}

void tx_pages_end(struct io_poll *round)
{
	struct tx_pages *sheets = round->sheets;

	if (!sheets || !sheets->plain)
		return;
	lay_out(round, NULL);
	sheets->plain = NULL;
}
#endif
