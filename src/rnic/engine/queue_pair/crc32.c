#include "queue_pair/crc32.h"

#include <string.h>

#define POLYNOMIAL 0xedb88320u /* x^32 + x^26 + ... + 1, lowest bit first */
#define SLICES 16

static uint32_t crc_tables[SLICES][256];
static uint32_t fifth_states[256];

/* Run four steps backward: the highest byte of an entry of the first table identifies the entry. */
static void make_fifth(void)
{
	uint8_t entry[256];
	for (unsigned byte = 0; byte < 256; byte++)
		entry[crc_tables[0][byte] >> 24] = (uint8_t)byte;
	for (unsigned change = 0; change < 256; change++) {
		uint32_t state = change;
		for (unsigned step = 0; step < 4; step++) {
			uint8_t byte = entry[state >> 24];
			state = (state ^ crc_tables[0][byte]) << 8 | byte;
		}
		fifth_states[change] = state;
	}
}

/* Table k has the effect of a byte on the CRC after k more bytes. */
static void make_tables(void)
{
	for (uint32_t byte = 0; byte < 256; byte++) {
		uint32_t crc = byte;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
		crc_tables[0][byte] = crc;
	}
	for (int k = 1; k < SLICES; k++)
		for (int byte = 0; byte < 256; byte++)
			crc_tables[k][byte] = crc_tables[k - 1][byte] >> 8 ^
					      crc_tables[0][crc_tables[k - 1][byte] & 0xff];
	make_fifth();
}

static uint32_t load_little(const uint8_t *at)
{
	return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Process four bytes of sixteen, followed by `after` more. */
static uint32_t slice_word(uint32_t word, int after)
{
	return crc_tables[after + 3][word & 0xff] ^ crc_tables[after + 2][word >> 8 & 0xff] ^
	       crc_tables[after + 1][word >> 16 & 0xff] ^ crc_tables[after][word >> 24];
}

/* Run the tables, without the complements at the start and end of a CRC. */
static uint32_t run_tables(uint32_t crc, const uint8_t *data, uint64_t length)
{
	for (; length >= SLICES; data += SLICES, length -= SLICES)
		crc = slice_word(load_little(data) ^ crc, 12) ^ slice_word(load_little(data + 4), 8) ^
		      slice_word(load_little(data + 8), 4) ^ slice_word(load_little(data + 12), 0);
	if (length & 8) {
		crc = slice_word(load_little(data) ^ crc, 4) ^ slice_word(load_little(data + 4), 0);
		data += 8;
	}
	if (length & 4) {
		crc = slice_word(load_little(data) ^ crc, 0);
		data += 4;
	}
	for (length &= 3; length; data++, length--)
		crc = crc >> 8 ^ crc_tables[0][(crc ^ *data) & 0xff];
	return crc;
}

static uint32_t by_tables(uint32_t state, const uint8_t *data, uint64_t length)
{
	return ~run_tables(~state, data, length);
}

uint32_t engine_crc32_fifth(uint8_t change)
{
	return fifth_states[change];
}

uint32_t engine_crc32_word(const uint8_t *word)
{
	return ~slice_word(~load_little(word), 0);
}

#if defined(__x86_64__)
#include <immintrin.h>

/* Only shorter data uses the tables: between packets, the kernel and long payloads evict them from the cache.
 */
#define FEW_LEAST 4
#define BLOCK 16
/* Prefetch distances in bytes: the hardware prefetcher stops at a page boundary. */
#define AHEAD 1024u
#define FAR_AHEAD 3072u
#define SHORT 128 /* from this length on, several chains are faster */

/* Folding (Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ", Intel 2009): a block of 128
 * bits is multiplied by x^n mod P and added to the block n bits further on. The constants are x^n mod P with their bits
 * reversed and shifted by one, for n = 1024 +- 32, 128 +- 32 and 64; then P and floor(x^64 / P). */
static const uint64_t BY_1024[2] = { 0x1e88ef372, 0x14a7fe880 };
static const uint64_t BY_128[2] = { 0x1751997d0, 0x0ccaa009e };
static const uint64_t BY_64[2] = { 0x163cd6124, 0 };
static const uint64_t BARRETT[2] = { 0x1db710641, 0x1f7011641 };

#define FOLDING __attribute__((target("pclmul,sse4.1")))

FOLDING static __m128i load(const uint8_t *at)
{
	return _mm_loadu_si128((const __m128i *)(const void *)at);
}

FOLDING static __m128i fold(__m128i block, __m128i by, __m128i next)
{
	__m128i low = _mm_clmulepi64_si128(block, by, 0x00);
	__m128i high = _mm_clmulepi64_si128(block, by, 0x11);
	return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Load the next 16 bytes, and copy them to `*to` if `copies`. */
FOLDING static inline __attribute__((always_inline)) __m128i take(const uint8_t **from, uint8_t **to, int copies)
{
	__m128i block = load(*from);
	*from += 16;
	if (copies) {
		_mm_storeu_si128((__m128i *)(void *)*to, block);
		*to += 16;
	}
	return block;
}

/* Reduce 64 bits to 32: a multiplication, then a Barrett reduction. */
FOLDING static inline __attribute__((always_inline)) uint32_t reduce_64(__m128i a)
{
	const __m128i low_word = _mm_setr_epi32(-1, 0, -1, 0);
	__m128i b = _mm_srli_si128(a, 4), by;
	a = _mm_clmulepi64_si128(_mm_and_si128(a, low_word), load((const uint8_t *)BY_64), 0x00);
	a = _mm_xor_si128(a, b);
	by = load((const uint8_t *)BARRETT);
	b = _mm_clmulepi64_si128(_mm_and_si128(a, low_word), by, 0x10);
	b = _mm_clmulepi64_si128(_mm_and_si128(b, low_word), by, 0x00);
	return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}

/* Reduce a block to 96 bits, and these as above. */
FOLDING static inline __attribute__((always_inline)) uint32_t reduce_128(__m128i a)
{
	__m128i by = load((const uint8_t *)BY_128);
	return reduce_64(_mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by, 0x10)));
}

/* Fold less than a block, at least one word, as if preceded by zeros, which leave a CRC of zero unchanged. */
FOLDING static inline __attribute__((always_inline)) uint32_t fold_few(uint32_t crc, const uint8_t *data,
								       uint64_t length)
{
	uint32_t first = load_little(data) ^ crc;
	if (length & 8 && length & 4)
		crc = reduce_128(_mm_setr_epi32(0, (int)first, (int)load_little(data + 4), (int)load_little(data + 8)));
	else if (length & 8)
		crc = reduce_64(_mm_setr_epi32((int)first, (int)load_little(data + 4), 0, 0));
	else
		crc = reduce_64(_mm_setr_epi32(0, (int)first, 0, 0));
	return run_tables(crc, data + (length & ~(uint64_t)3), length & 3);
}

/* Load the first one to three words as a block with leading zeros. */
FOLDING static inline __attribute__((always_inline)) __m128i begin_few(uint32_t crc, const uint8_t *data,
								       unsigned words)
{
	int first = (int)(load_little(data) ^ crc);
	if (words == 1)
		return _mm_setr_epi32(0, 0, 0, first);
	if (words == 2)
		return _mm_setr_epi32(0, 0, first, (int)load_little(data + 4));
	return _mm_setr_epi32(0, first, (int)load_little(data + 4), (int)load_little(data + 8));
}

/* Fold whole words, at least a block, in one chain. Words beyond whole blocks come first, so that one reduction
 * suffices. */
FOLDING static uint32_t short_only(uint32_t crc, const uint8_t *data, uint64_t length)
{
	__m128i by = load((const uint8_t *)BY_128), a;
	unsigned words = (unsigned)(length % BLOCK) / 4;

	if (words) {
		a = begin_few(crc, data, words);
		data += 4 * words;
		length -= 4 * words;
	} else {
		a = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)crc));
		data += BLOCK;
		length -= BLOCK;
	}
	for (; length; data += BLOCK, length -= BLOCK)
		a = fold(a, by, load(data));
	return reduce_128(a);
}

/* Return the CRC of the data folded into `a` and of the rest, less than whole chains. */
FOLDING static inline __attribute__((always_inline)) uint32_t finish(__m128i a, uint8_t *to, const uint8_t *from,
								     uint64_t length, int copies)
{
	__m128i by = load((const uint8_t *)BY_128);

	for (; length >= BLOCK; length -= BLOCK)
		a = fold(a, by, take(&from, &to, copies));
	uint32_t crc = reduce_128(a);
	if (copies && length)
		memcpy(to, from, length);
	from = copies ? to : from;
	return length < FEW_LEAST ? run_tables(crc, from, length) : fold_few(crc, from, length);
}

/* Run the folding loop; `length` is at least BLOCK. */
FOLDING static inline __attribute__((always_inline)) uint32_t run_folding(uint32_t crc, uint8_t *to,
									  const uint8_t *from, uint64_t length,
									  int copies)
{
	__m128i by = load((const uint8_t *)BY_128);
	__m128i a = _mm_xor_si128(take(&from, &to, copies), _mm_cvtsi32_si128((int)crc));
	__m128i b;
	length -= 16;
	if (length >= 256 - 16) {
		/* as many chains as hide the latency of a multiplication */
		__m128i far = load((const uint8_t *)BY_1024);
		__m128i c, d, e, f, g, h;
		b = take(&from, &to, copies);
		c = take(&from, &to, copies);
		d = take(&from, &to, copies);
		e = take(&from, &to, copies);
		f = take(&from, &to, copies);
		g = take(&from, &to, copies);
		h = take(&from, &to, copies);
		for (length -= 128 - 16; length >= 128; length -= 128) {
			if (copies)
				for (unsigned line = 0; line < 128; line += 64)
					_mm_prefetch((const char *)(from + AHEAD + line), _MM_HINT_T0);
			a = fold(a, far, take(&from, &to, copies));
			b = fold(b, far, take(&from, &to, copies));
			c = fold(c, far, take(&from, &to, copies));
			d = fold(d, far, take(&from, &to, copies));
			e = fold(e, far, take(&from, &to, copies));
			f = fold(f, far, take(&from, &to, copies));
			g = fold(g, far, take(&from, &to, copies));
			h = fold(h, far, take(&from, &to, copies));
		}
		a = fold(fold(fold(fold(a, by, b), by, c), by, d), by, e);
		a = fold(fold(fold(a, by, f), by, g), by, h);
	}
	return finish(a, to, from, length, copies);
}

FOLDING static uint32_t few_only(uint32_t crc, const uint8_t *data, uint64_t length)
{
	return fold_few(crc, data, length);
}

FOLDING static uint32_t fold_only(uint32_t crc, const uint8_t *data, uint64_t length)
{
	return run_folding(crc, 0, data, length, 0);
}

FOLDING static uint32_t fold_and_copy(uint32_t crc, uint8_t *to, const uint8_t *from, uint64_t length)
{
	return run_folding(crc, to, from, length, 1);
}

/* Use wide registers of four or two blocks if the CPU can multiply them, for at least WIDE_LEAST bytes. */
#if (defined(__clang__) && __clang_major__ >= 8) || (!defined(__clang__) && __GNUC__ >= 8)
#define WIDE_LEAST 512
#define WIDE_STEP 256u

static const uint64_t BY_2048[2] = { 0x11542778a, 0x1322d1430 };
static const uint64_t BY_512[2] = { 0x154442bd4, 0x1c6e41596 };
static const uint64_t BY_256[2] = { 0x0f1da05aa, 0x15a546366 };

#define WIDE __attribute__((target("pclmul,sse4.1,avx512f,avx512vl,vpclmulqdq,prfchw")))

WIDE static inline __attribute__((always_inline)) __m512i wide_fold(__m512i blocks, __m512i by, __m512i next)
{
	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(blocks, by, 0x00),
					 _mm512_clmulepi64_epi128(blocks, by, 0x11), next, 0x96);
}

WIDE static inline __attribute__((always_inline)) __m512i wide_take(uint8_t *to, const uint8_t *from, unsigned at,
								    int copies)
{
	__m512i blocks = _mm512_loadu_si512(from + at);
	if (copies)
		_mm512_storeu_si512(to + at, blocks);
	return blocks;
}

/* Prefetch for a later step. Lines to write, or only to read, may be in another core's cache, so prefetch further
 * ahead. */
WIDE static inline __attribute__((always_inline)) void wide_ask(const uint8_t *to, const uint8_t *from, int copies)
{
	for (unsigned line = 0; line < WIDE_STEP; line += 64) {
		if (copies) {
			_mm_prefetch((const char *)(from + AHEAD + line), _MM_HINT_T0);
			__builtin_prefetch(to + AHEAD + line, 1);
		} else {
			_mm_prefetch((const char *)(from + FAR_AHEAD + line), _MM_HINT_T1);
		}
	}
}

/* Run the wide loop; `length` is at least WIDE_STEP. Returns a block equivalent to all data before `*done`. */
WIDE static inline __attribute__((always_inline)) __m128i run_wide(uint32_t crc, uint8_t *to, const uint8_t *from,
								   uint64_t length, uint64_t *done, int copies)
{
	const __m512i far = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)BY_2048));
	const __m512i near = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)BY_512));
	const __m128i by = _mm_loadu_si128((const __m128i *)(const void *)BY_128);
	__m512i a = wide_take(to, from, 0, copies), b = wide_take(to, from, 64, copies);
	__m512i c = wide_take(to, from, 128, copies), d = wide_take(to, from, 192, copies);
	uint64_t at = WIDE_STEP;

	a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
	for (; length - at >= WIDE_STEP; at += WIDE_STEP) {
		uint8_t *here = copies ? to + at : to;
		wide_ask(here, from + at, copies);
		a = wide_fold(a, far, wide_take(here, from + at, 0, copies));
		b = wide_fold(b, far, wide_take(here, from + at, 64, copies));
		c = wide_fold(c, far, wide_take(here, from + at, 128, copies));
		d = wide_fold(d, far, wide_take(here, from + at, 192, copies));
	}
	a = wide_fold(wide_fold(wide_fold(a, near, b), near, c), near, d);
	__m128i block = _mm512_extracti32x4_epi32(a, 0);
	block = fold(block, by, _mm512_extracti32x4_epi32(a, 1));
	block = fold(block, by, _mm512_extracti32x4_epi32(a, 2));
	block = fold(block, by, _mm512_extracti32x4_epi32(a, 3));
	*done = at;
	/* The following code is not compiled for wide registers: with dirty upper halves, each of its first
	 * instructions would wait some hundred cycles. Compilers only insert this if the whole file targets such CPUs.
	 * */
	_mm256_zeroupper();
	return block;
}

WIDE static uint32_t wide_only(uint32_t crc, const uint8_t *data, uint64_t length)
{
	uint64_t done;
	__m128i block = run_wide(crc, 0, data, length, &done, 0);
	return finish(block, 0, data + done, length - done, 0);
}

WIDE static uint32_t wide_and_copy(uint32_t crc, uint8_t *to, const uint8_t *from, uint64_t length)
{
	uint64_t done;
	__m128i block = run_wide(crc, to, from, length, &done, 1);
	return finish(block, to + done, from + done, length - done, 1);
}

/* The same with two blocks per register, for CPUs without AVX-512 (AMD before Zen 4, Intel with efficiency cores). */
#define HALF __attribute__((target("pclmul,sse4.1,avx2,vpclmulqdq")))

HALF static inline __attribute__((always_inline)) __m256i half_fold(__m256i blocks, __m256i by, __m256i next)
{
	__m256i low = _mm256_clmulepi64_epi128(blocks, by, 0x00);
	__m256i high = _mm256_clmulepi64_epi128(blocks, by, 0x11);
	return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

HALF static inline __attribute__((always_inline)) __m256i half_take(uint8_t *to, const uint8_t *from, unsigned at,
								    int copies)
{
	__m256i blocks = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
	if (copies)
		_mm256_storeu_si256((__m256i *)(void *)(to + at), blocks);
	return blocks;
}

HALF static inline __attribute__((always_inline)) __m128i run_half(uint32_t crc, uint8_t *to, const uint8_t *from,
								   uint64_t length, uint64_t *done, int copies)
{
	const __m256i far = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)BY_2048));
	const __m256i near = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)BY_256));
	const __m128i by = _mm_loadu_si128((const __m128i *)(const void *)BY_128);
	__m256i a = half_take(to, from, 0, copies), b = half_take(to, from, 32, copies);
	__m256i c = half_take(to, from, 64, copies), d = half_take(to, from, 96, copies);
	__m256i e = half_take(to, from, 128, copies), f = half_take(to, from, 160, copies);
	__m256i g = half_take(to, from, 192, copies), h = half_take(to, from, 224, copies);
	uint64_t at = WIDE_STEP;

	a = _mm256_xor_si256(a, _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)crc)));
	for (; length - at >= WIDE_STEP; at += WIDE_STEP) {
		uint8_t *here = copies ? to + at : to;
		if (copies)
			for (unsigned line = 0; line < WIDE_STEP; line += 64)
				_mm_prefetch((const char *)(from + at + AHEAD + line), _MM_HINT_T0);
		a = half_fold(a, far, half_take(here, from + at, 0, copies));
		b = half_fold(b, far, half_take(here, from + at, 32, copies));
		c = half_fold(c, far, half_take(here, from + at, 64, copies));
		d = half_fold(d, far, half_take(here, from + at, 96, copies));
		e = half_fold(e, far, half_take(here, from + at, 128, copies));
		f = half_fold(f, far, half_take(here, from + at, 160, copies));
		g = half_fold(g, far, half_take(here, from + at, 192, copies));
		h = half_fold(h, far, half_take(here, from + at, 224, copies));
	}
	a = half_fold(half_fold(half_fold(half_fold(a, near, b), near, c), near, d), near, e);
	a = half_fold(half_fold(half_fold(a, near, f), near, g), near, h);
	__m128i block = fold(_mm256_castsi256_si128(a), by, _mm256_extracti128_si256(a, 1));
	*done = at;
	_mm256_zeroupper();
	return block;
}

HALF static uint32_t half_only(uint32_t crc, const uint8_t *data, uint64_t length)
{
	uint64_t done;
	__m128i block = run_half(crc, 0, data, length, &done, 0);
	return finish(block, 0, data + done, length - done, 0);
}

HALF static uint32_t half_and_copy(uint32_t crc, uint8_t *to, const uint8_t *from, uint64_t length)
{
	uint64_t done;
	__m128i block = run_half(crc, to, from, length, &done, 1);
	return finish(block, to + done, from + done, length - done, 1);
}

static unsigned widest_register(void)
{
	if (!__builtin_cpu_supports("vpclmulqdq"))
		return 1;
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
		return 4;
	return __builtin_cpu_supports("avx2") ? 2 : 1;
}
#else
#define WIDE_LEAST UINT64_MAX
#define wide_only fold_only
#define wide_and_copy fold_and_copy
#define half_only fold_only
#define half_and_copy fold_and_copy

static unsigned widest_register(void)
{
	return 1;
}
#endif

static unsigned most, blocks; /* blocks per register: supported by the CPU, and in use; 0 for tables */

/* Emulators implement the instruction as a loop over bits: in QEMU, folding is half as fast as tables. */
#define TRIES 4u /* the best counts, so that an interrupt does not look like an emulator */
#define TRIED_BYTES 2048u

/* Measure the time in CPU clock ticks. */
static uint64_t time_of(unsigned wanted)
{
	static uint8_t bytes[TRIED_BYTES];
	uint64_t best = UINT64_MAX;

	blocks = wanted;
	for (unsigned tried = 0; tried < TRIES; tried++) {
		uint64_t began = __builtin_ia32_rdtsc();
		bytes[0] ^= (uint8_t)engine_crc32(0, bytes, sizeof bytes);
		uint64_t took = __builtin_ia32_rdtsc() - began;
		best = took < best ? took : best;
	}
	return best;
}

__attribute__((constructor)) static void prepare(void)
{
	make_tables();
	__builtin_cpu_init();
	if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
		most = widest_register();
	blocks = most && time_of(0) > time_of(most) ? most : 0;
}

unsigned engine_crc32_blocks(unsigned wanted)
{
	blocks = wanted < most ? wanted : most;
	if (blocks == 3)
		blocks = 2;
	return blocks;
}

uint32_t engine_crc32(uint32_t state, const uint8_t *data, uint64_t length)
{
	if (blocks > 1 && length >= WIDE_LEAST)
		return ~(blocks == 4 ? wide_only : half_only)(~state, data, length);
	if (blocks && length >= BLOCK && length < SHORT && !(length & 3))
		return ~short_only(~state, data, length);
	if (blocks && length >= BLOCK)
		return ~fold_only(~state, data, length);
	if (blocks && length >= FEW_LEAST)
		return ~few_only(~state, data, length);
	return by_tables(state, data, length);
}

uint32_t engine_crc32_copy(uint32_t state, uint8_t *to, const uint8_t *from, uint64_t length)
{
	if (blocks > 1 && length >= WIDE_LEAST)
		return ~(blocks == 4 ? wide_and_copy : half_and_copy)(~state, to, from, length);
	if (blocks && length >= BLOCK)
		return ~fold_and_copy(~state, to, from, length);
	if (length)
		memcpy(to, from, length);
	return engine_crc32(state, to, length); /* of the copy, since `from` may change */
}

#else

__attribute__((constructor)) static void prepare(void)
{
	make_tables();
}

unsigned engine_crc32_blocks(unsigned wanted)
{
	(void)wanted;
	return 0;
}

uint32_t engine_crc32(uint32_t state, const uint8_t *data, uint64_t length)
{
	return by_tables(state, data, length);
}

uint32_t engine_crc32_copy(uint32_t state, uint8_t *to, const uint8_t *from, uint64_t length)
{
	if (length)
		memcpy(to, from, length);
	return by_tables(state, to, length);
}

#endif
