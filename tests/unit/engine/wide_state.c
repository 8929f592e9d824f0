/* Whether the CRC leaves the upper halves of wide registers in use: 1 where it does, 0 where not, 2 where no processor or
 * system says so. Register state in use by XGETBV with ECX = 1 (Intel SDM vol. 1, 13.2): bit 2 AVX, bits 5 to 7 AVX-512. */
#include "queue_pair/crc32.h"

#include <stdio.h>

#if defined(__x86_64__)
#include <cpuid.h>

#define UPPER_HALVES 0x44u /* of ymm0 to ymm15, of zmm0 to zmm15 */

static int told(void)
{
	unsigned a, b, c, d;
	return __get_cpuid(1, &a, &b, &c, &d) && c & bit_OSXSAVE && __get_cpuid_count(13, 1, &a, &b, &c, &d) && a & 4;
}

static unsigned in_use(void)
{
	unsigned low, high;
	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
	return low & UPPER_HALVES;
}

static unsigned clean(void)
{
	__asm__ volatile("vzeroupper" ::: "memory");
	return in_use();
}

int main(void)
{
	static uint8_t from[8192], to[8192];
	if (!told() || clean())
		return 2;
	for (unsigned blocks = 1; blocks <= 4; blocks *= 2) {
		unsigned used = engine_crc32_blocks(blocks);
		for (uint64_t length = 0; length <= sizeof(from); length += 61) {
			engine_crc32(0, from, length);
			engine_crc32_copy(0, to, from, length);
			if (in_use()) {
				printf("%llu bytes, %u blocks at once\n", (unsigned long long)length, used);
				return 1;
			}
		}
	}
	return 0;
}
#else
int main(void)
{
	return 2;
}
#endif
