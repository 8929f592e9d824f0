#include "queue_pair/translation.h"

#include "memory/memory_key.h"
#include "queue_pair/byteorder.h"

/* words of mem/translation.py */
#define TRANSLATION_WRITES 0u
#define TRANSLATION_READS 1u
#define TRANSLATION_COUNT 2u
#define TRANSLATION_KEYS 3u

/* words of mem/tlb.py */
#define TLB_HITS 0u
#define TLB_KNOWN 1u
#define TLB_MISSES 2u
#define TLB_EVICTIONS 3u
#define TLB_FIRST_SET 4u
#define TLB_READ 1u
#define TLB_WRITE 2u
#define TLB_SPREAD 0x9E37u
#define PAGE_SHIFT 12u
#define TAG_SHIFT 52u
#define FAULT_PAGES 512u /* coyote/mmu.py */

static const struct engine_translation *translation_of(const struct engine_qp *qp, uint32_t rkey)
{
	return rkey ? NULL : qp->translation;
}

const struct memory_key *engine_remote_key(const struct engine_shared *shared, const struct engine_qp *qp,
					   uint32_t rkey, uint64_t va, uint64_t length, uint64_t rights)
{
	const struct engine_translation *by = translation_of(qp, rkey);
	uint64_t pd = be_get(qp->qpc, QPC_PD), qpn = be_get(qp->qpc, QPC_LOCAL_QPN);

	if (qp->guarded)
		return NULL;
	if (!by)
		return engine_key_check(shared, rkey, pd, va, length, rights, qpn, 0);
	for (uint64_t i = 0; i < by->words[TRANSLATION_COUNT]; i++) {
		const struct memory_key *key = engine_key_check(shared, (uint32_t)by->words[TRANSLATION_KEYS + i], pd,
								va, length, rights, qpn, 0);
		if (key)
			return key;
	}
	return NULL;
}

uint64_t engine_remote_binding(uint32_t rkey, const struct memory_key *key)
{
	return rkey ? key->binding : key->binding << 32 | key->key;
}

/* ------------------------------------------------------------------ the TLB */

/* Return the set of a page: each way has a tag and rights, 0 if empty. */
static uint64_t *set_of(const struct engine_translation *by, uint64_t page)
{
	uint64_t set = (page ^ by->number * TLB_SPREAD) & (by->tlb_sets - 1);
	return by->tlb + TLB_FIRST_SET + 2 * by->tlb_ways * set;
}

/* Return the way of a page in its set, or the number of ways. */
static uint64_t find_page(const struct engine_translation *by, const uint64_t *set, uint64_t page)
{
	uint64_t tag = by->number << TAG_SHIFT | page, way = 0;

	while (way < by->tlb_ways && !(set[2 * way] == tag && set[2 * way + 1]))
		way++;
	return way;
}

static uint64_t pages_of(uint64_t va, uint64_t length)
{
	return ((va + length - 1) >> PAGE_SHIFT) - (va >> PAGE_SHIFT) + 1;
}

/* Return the number of leading pages that the TLB has with the rights `need`. */
static uint64_t known_pages(const struct engine_translation *by, uint64_t first, uint64_t pages, uint64_t need)
{
	uint64_t count = 0;

	for (; count < pages; count++) {
		const uint64_t *set = set_of(by, first + count);
		uint64_t way = find_page(by, set, first + count);
		if (way == by->tlb_ways || !(set[2 * way + 1] & need))
			break;
	}
	return count;
}

static int range_known(const struct engine_translation *by, uint64_t va, uint64_t length, uint64_t need)
{
	uint64_t pages = pages_of(va, length);
	return known_pages(by, va >> PAGE_SHIFT, pages, need) == pages;
}

/* Move a page from `way` to the front of its set, or insert it there in place of `way`. */
static void put_first(uint64_t *set, uint64_t way, uint64_t tag, uint64_t rights)
{
	memmove(set + 2, set, 2 * way * sizeof *set);
	set[0] = tag;
	set[1] = rights;
}

/* Move pages to the front of their sets; return their number. */
static uint64_t use_pages(const struct engine_translation *by, uint64_t first, uint64_t pages)
{
	for (uint64_t page = first; page < first + pages; page++) {
		uint64_t *set = set_of(by, page), way = find_page(by, set, page);
		if (way && way != by->tlb_ways)
			put_first(set, way, set[2 * way], set[2 * way + 1]);
	}
	return pages;
}

uint64_t engine_tlb_use_first(const struct engine_translation *by, uint64_t va, uint64_t length, uint64_t need)
{
	return use_pages(by, va >> PAGE_SHIFT, known_pages(by, va >> PAGE_SHIFT, pages_of(va, length), need));
}

/* Insert a page. Returns whether another one was evicted. */
static int insert_page(const struct engine_translation *by, uint64_t page, uint64_t rights)
{
	uint64_t *set = set_of(by, page), way = find_page(by, set, page);
	int gone = 0;

	if (way == by->tlb_ways) {
		for (way = 0; way < by->tlb_ways && set[2 * way + 1]; way++)
			;
		gone = way == by->tlb_ways;
		way -= (uint64_t)gone;
		by->tlb[TLB_KNOWN] += !gone;
	}
	put_first(set, way, by->number << TAG_SHIFT | page, rights);
	return gone;
}

uint64_t engine_tlb_insert(const struct engine_translation *by, uint64_t first, uint64_t pages, uint64_t rights)
{
	uint64_t gone = 0;

	for (uint64_t page = first + pages; page-- > first;)
		gone += (uint64_t)insert_page(by, page, rights);
	return gone;
}

/* Handle the page faults of a range in the region of `key`, like coyote/mmu.py: each inserts the pages up to the end,
 * some of which a small TLB may evict again. */
static void fill_range(const struct engine_translation *by, uint64_t va, uint64_t length, uint64_t need)
{
	uint64_t page = va >> PAGE_SHIFT, end = page + pages_of(va, length);

	while ((page += use_pages(by, page, known_pages(by, page, end - page, need))) < end) {
		uint64_t pages = end - page < FAULT_PAGES ? end - page : FAULT_PAGES;
		by->tlb[TLB_EVICTIONS] += engine_tlb_insert(by, page++, pages, TLB_READ | TLB_WRITE);
		by->tlb[TLB_MISSES]++;
	}
}

int engine_tlb_ready(const struct engine_translation *by, const struct memory_key *key, uint64_t va, uint64_t length,
		     uint64_t need)
{
	if (range_known(by, va, length, need))
		return 1;
	/* pages of a read-only region may be writable by the process: leave them to Python */
	if (!by->handles || !(key->access & ACCESS_LOCAL_WRITE))
		return 0;
	fill_range(by, va, length, need);
	return 1;
}

int engine_pages_ready(const struct engine_qp *qp, const struct memory_key *key, uint32_t rkey, uint64_t va,
		       uint64_t length, uint64_t rights)
{
	const struct engine_translation *by = translation_of(qp, rkey);
	uint64_t need = rights & (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC) ? TLB_WRITE : TLB_READ;

	return !by || engine_tlb_ready(by, key, va, length, need);
}

void engine_pages_use(const struct engine_qp *qp, uint32_t rkey, uint64_t va, uint64_t length)
{
	const struct engine_translation *by = translation_of(qp, rkey);

	if (by)
		by->tlb[TLB_HITS] += use_pages(by, va >> PAGE_SHIFT, pages_of(va, length));
}

void engine_count_written(const struct engine_qp *qp, uint32_t rkey)
{
	const struct engine_translation *by = translation_of(qp, rkey);

	if (by)
		by->words[TRANSLATION_WRITES]++;
}

void engine_count_answered(const struct engine_qp *qp, uint32_t rkey)
{
	const struct engine_translation *by = translation_of(qp, rkey);

	if (by)
		by->words[TRANSLATION_READS]++;
}
