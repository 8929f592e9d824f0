/* What the engine makes of a machine's speed, by a clock and a socket of the test's own: prints which way of the CRC it takes
 * where folding, then tables, are quicker, and how slow it calls machines whose looks at a socket take so many ns. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint64_t time_ns, look_ns, looks, fold_ns;
#if defined(__x86_64__)
static uint64_t told(void);
#endif

#define __builtin_ia32_rdtsc told
#include "queue_pair/crc32.c"
#undef __builtin_ia32_rdtsc

#undef _GNU_SOURCE /* it defines it itself */
#define recv looked
static ssize_t looked(int fd, void *to, size_t length, int flags);
#include "io/calibrate.c"

#if defined(__x86_64__)
/* It goes on by what is timed: a CRC, by the way that is used. */
static uint64_t told(void)
{
	return time_ns += blocks ? fold_ns : 1000;
}
#endif

uint64_t clock_now(void)
{
	return time_ns;
}

/* The first is disturbed. */
static ssize_t looked(int fd, void *to, size_t length, int flags)
{
	if (fd != 7 || !to || length != 1 || flags != (MSG_PEEK | MSG_DONTWAIT))
		abort();
	time_ns += look_ns + (looks++ ? 0 : 1000000);
	return -1;
}

int main(void)
{
	static const uint64_t asked[] = { 0, 220, 799, 800, 3800, 10000000 };

	for (fold_ns = 100; fold_ns <= 10000; fold_ns *= 100) {
		prepare();
		printf("%s ", engine_crc32(0, (const uint8_t *)"123456789", 9) != 0xcbf43926 ? "wrong" :
#if defined(__x86_64__)
			      blocks != most ? "tables" :
#endif
					       "most");
	}
	for (unsigned i = 0; i < sizeof asked / sizeof *asked; i++) {
		look_ns = asked[i];
		looks = 0;
		printf("%u ", (unsigned)calibrate_slowdown(7));
	}
	return 0;
}
