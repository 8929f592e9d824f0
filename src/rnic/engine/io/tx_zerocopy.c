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

#define ZEROCOPY_CREDIT 64u /* consecutive sends without a long burst after which none is expected */
#define MAX_TURN_PACKETS 1024 /* more packets than a turn has */
#define STUCK_ALLOCATIONS 4096u /* allocations after which a page in use counts as stuck */
/* A few huge pages hold a tx page, so that the system has fewer to count. */
#define HUGE_BYTES ((size_t)2 << 20)
#define ALL_PAGES_BYTES ((size_t)TX_PAGES * TX_PAGE_BYTES)

enum { USE_NONE, USE_REQUESTS, USE_RESPONSES };

struct tx_page {
	uint8_t name[UDP_NAME_BYTES]; /* destination address of the packets in it */
	uint32_t name_bytes; /* 0: none yet */
	uint32_t use; /* kind of its packets, which may be in flight; if so, the three below are set */
	uint64_t owner; /* record of their queue pair */
	uint64_t end_psn; /* the PSN after them */
	uint64_t allocated_at; /* `allocations` at the allocation */
};

struct tx_pages {
	struct tx_splice splice;
	uint8_t *mapped, *bytes; /* memory of all tx pages */
	/* between begin and end: where packets are laid out otherwise; NULL if no long burst is expected */
	uint8_t *copy_buffer;
	struct tx_page *current; /* the page that packets are laid out in now, or NULL */
	const struct tx_path *path; /* path of these packets */
	uint64_t allocations; /* number of allocations so far */
	uint32_t next; /* start of the search for a page */
	uint32_t credit;
	struct tx_page pages[TX_PAGES];
};

static struct tx_pages *open_pages(void)
{
	struct tx_pages *pages = calloc(1, sizeof *pages);
	if (!pages)
		return NULL;
	void *mapped =
		mmap(NULL, ALL_PAGES_BYTES + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mapped == MAP_FAILED) {
		pages->splice.broken = 1;
		return pages;
	}
	pages->mapped = mapped;
	pages->bytes = pages->mapped + (HUGE_BYTES - (uintptr_t)mapped % HUGE_BYTES) % HUGE_BYTES;
	madvise(pages->bytes, ALL_PAGES_BYTES, MADV_HUGEPAGE); /* slower without it */
	tx_splice_open(&pages->splice);
	return pages;
}

void tx_pages_check(struct tx_pages *pages)
{
	if (pages)
		tx_splice_check(&pages->splice);
}

void tx_pages_close(struct tx_pages *pages)
{
	if (!pages)
		return;
	tx_splice_close(&pages->splice);
	if (pages->mapped)
		munmap(pages->mapped, ALL_PAGES_BYTES + HUGE_BYTES);
	free(pages);
}

/* ------------------------------------------------------------------ tx pages */

static const struct queue_pair *record_of(const struct io_poll *round, uint64_t owner)
{
	return (const struct queue_pair *)(const void *)(round->device->sched.arena + owner);
}

static const uint8_t *context_of(const struct io_poll *round, uint64_t owner)
{
	return round->device->sched.arena + record_of(round, owner)->context;
}

static uint8_t *bytes_of(const struct tx_pages *pages, const struct tx_page *page)
{
	return pages->bytes + (size_t)(page - pages->pages) * TX_PAGE_BYTES;
}

/* Return whether packets in a tx page may be in flight. Requests are in flight until they are acknowledged, or until
 * the queue pair restarts with other PSNs; its record may not include this turn's packets yet. Responses are not
 * acknowledged, but a requester has no more in flight than this end would. */
static int is_busy(const struct io_poll *round, struct tx_page *page)
{
	const struct queue_pair *record = record_of(round, page->owner);
	int64_t behind;

	if (page->use == USE_REQUESTS &&
	    (psn_diff(page->end_psn, record->una) <= 0 || psn_diff(page->end_psn, record->sent_psn) > MAX_TURN_PACKETS))
		page->use = USE_NONE;
	if (page->use == USE_RESPONSES) {
		behind = psn_diff(be_get(context_of(round, page->owner), QPC_EXPECTED_PSN), page->end_psn);
		if (behind < 0 || behind >= (int64_t)record->most)
			page->use = USE_NONE;
	}
	return page->use != USE_NONE;
}

/* Replace a page's memory: the kernel allocates new pages at the next write, and its queues keep the old ones. If the
 * kernel refuses, as for locked memory, tx pages are no longer used. */
static int replace_memory(struct tx_pages *pages, struct tx_page *page)
{
	page->name_bytes = page->use = 0;
	if (!madvise(bytes_of(pages, page), TX_PAGE_BYTES, MADV_DONTNEED))
		return 1;
	pages->splice.broken = 1;
	return 0;
}

static int goes_to(const struct tx_page *page, const struct tx_path *path)
{
	return page->name_bytes == path->name_bytes && !memcmp(page->name, path->name, path->name_bytes);
}

/* Find a tx page for packets to an address: one that was used for it, an unused one, or, with new memory, one that is
 * not busy or is stuck. NULL if there is none. */
static struct tx_page *find_page(struct io_poll *round, const struct tx_path *path)
{
	struct tx_pages *pages = round->tx_pages;
	struct tx_page *blank = NULL, *other = NULL;

	pages->allocations++;
	for (uint32_t i = 0; i < TX_PAGES; i++) {
		struct tx_page *page = &pages->pages[(pages->next + i) % TX_PAGES];
		int busy = is_busy(round, page);
		if (!busy && goes_to(page, path))
			return page;
		if (!busy && !page->name_bytes && !blank)
			blank = page;
		if (!other && (!busy || pages->allocations - page->allocated_at > STUCK_ALLOCATIONS))
			other = page;
	}
	return blank ? blank : other && replace_memory(pages, other) ? other : NULL;
}

/* Select where packets are laid out from now on: in a tx page for their path, if there is one. Else, or for NULL, they
 * are copied. */
static void select_output(struct io_poll *round, const struct tx_path *path)
{
	struct tx_pages *pages = round->tx_pages;
	struct engine_out *out = &round->out;

	pages->path = path;
	pages->current = path && !pages->splice.broken ? find_page(round, path) : NULL;
	out->bytes = pages->copy_buffer;
	out->room = POLL_OUT_BYTES;
	if (pages->current) {
		pages->next = (uint32_t)(pages->current - pages->pages);
		out->bytes = bytes_of(pages, pages->current);
		out->room = TX_PAGE_BYTES;
	}
}

void tx_pages_forget_qp(struct io_poll *round, uint64_t record)
{
	struct tx_pages *pages = round->tx_pages;

	for (uint32_t i = 0; pages && i < TX_PAGES; i++) {
		struct tx_page *page = &pages->pages[i];
		if (page->use && page->owner == record) /* their arrival can no longer be detected */
			replace_memory(pages, page);
	}
}

/* ------------------------------------------------------------------ sending */

void tx_pages_begin(struct io_poll *round)
{
	struct tx_pages *pages = round->tx_pages;

	if (!pages || pages->splice.broken || !pages->credit)
		return;
	pages->credit--;
	pages->copy_buffer = round->out.bytes;
}

static int is_same_destination(const struct tx_path *one, const struct tx_path *other)
{
	return one == other || (one && other && one->name_bytes == other->name_bytes &&
				!memcmp(one->name, other->name, one->name_bytes));
}

void tx_pages_select(struct io_poll *round, const struct queue_pair *record, const struct tx_path *path)
{
	struct tx_pages *pages = round->tx_pages;
	uint64_t owner = (uint64_t)((const uint8_t *)record - round->device->sched.arena);

	if (!pages || !pages->copy_buffer) {
		round->last_qp = owner;
		return;
	}
	if (record->service || path->loopback || path->divert)
		path = NULL;
	int stays = pages->current && is_same_destination(pages->path, path);
	/* so a long burst belongs to the queue pair in turn, even after short bursts of others */
	if (round->out.used && (!stays || (owner != round->last_qp && round->out.used >= TX_PAGE_MIN_BURST)))
		round->out.carry(&round->out);
	round->last_qp = owner;
	if (!stays)
		select_output(round, path);
}

/* Return the use of a burst's pages, and the PSN after it: requests of a reliable connection, which are acknowledged,
 * or READ responses to a peer that has agreed. An ACK may be part of the burst. */
static int use_of_burst(const struct io_poll *round, const struct engine_burst *burst, uint64_t *end_psn)
{
	const uint8_t *bytes = round->out.bytes + burst->offset;

	if (burst->length < TX_PAGE_MIN_BURST || burst->count < 2)
		return USE_NONE;
	for (uint64_t i = burst->count; i-- > burst->count - 2;) {
		const uint8_t *packet = bytes + i * (uint64_t)burst->segment;
		uint16_t flags = opcode_rows[packet[0]].flags;
		if ((packet[0] & BTH_SERVICE_MASK) != SERVICE_RC)
			return USE_NONE;
		*end_psn = (be_load(packet + PSN_AT, 3) + 1) & PSN_MASK;
		if (flags & (ROW_SEND | ROW_WRITE))
			return USE_REQUESTS;
		if (flags & ROW_READ_RESPONSE) {
			const uint8_t *context = context_of(round, round->last_qp);
			int agreed = record_of(round, round->last_qp)->most &&
				     be_get(context, QPC_OPTIONS) & OPT_SELECTIVE_REPEAT;
			return agreed ? USE_RESPONSES : USE_NONE;
		}
	}
	return USE_NONE;
}

int tx_pages_transmit(struct io_poll *round)
{
	struct tx_pages *pages = round->tx_pages;
	struct engine_out *out = &round->out;

	if (!pages || !pages->current)
		return 0;
	struct tx_page *page = pages->current;
	for (uint32_t i = 0; i < out->count; i++) {
		const struct engine_burst *burst = &out->bursts[i];
		struct tx_path *path = (struct tx_path *)(uintptr_t)burst->route;
		const uint8_t *bytes = out->bytes + burst->offset;
		uint64_t end_psn;
		int use = use_of_burst(round, burst, &end_psn);
		if (use)
			pages->credit = ZEROCOPY_CREDIT;
		if (page->use && page->use != (uint32_t)use)
			use = USE_NONE; /* a page has one use at a time */
		if (use &&
		    !tx_splice_send(&pages->splice, path, bytes, burst->length, burst->segment, &round->counts)) {
			memcpy(page->name, path->name, sizeof page->name);
			page->name_bytes = path->name_bytes;
			page->use = (uint32_t)use;
			page->owner = round->last_qp;
			page->end_psn = end_psn;
			page->allocated_at = pages->allocations;
			round->counts.sent += burst->count;
			round->spliced++;
		} else {
			udp_transmit(path, bytes, burst->length, burst->segment, &round->counts);
		}
		round->tx_bytes += burst->length;
		round->sent += burst->count;
	}
	if (page->use)
		select_output(round, pages->path);
	return 1;
}

void tx_pages_note_copy(struct io_poll *round, const struct engine_burst *burst)
{
	uint64_t end_psn;

	if (!round->may_splice || !use_of_burst(round, burst, &end_psn))
		return;
	if (!round->tx_pages)
		round->tx_pages = open_pages();
	if (round->tx_pages)
		round->tx_pages->credit = ZEROCOPY_CREDIT;
}

void tx_pages_end(struct io_poll *round)
{
	struct tx_pages *pages = round->tx_pages;

	if (!pages || !pages->copy_buffer)
		return;
	select_output(round, NULL);
	pages->copy_buffer = NULL;
}
#endif
