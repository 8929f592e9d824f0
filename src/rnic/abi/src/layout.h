/* Fields of big-endian layouts: a field macro of rnic_hw.h stands for byte offset, unit, lowest bit and width. */
#ifndef RNIC_LAYOUT_H
#define RNIC_LAYOUT_H

#include <stdint.h>

#include "rnic_hw.h"

static inline void rnic_put_be(void *buffer, unsigned at, unsigned unit, unsigned lsb, unsigned width, uint64_t value)
{
	uint8_t *bytes = (uint8_t *)buffer + at;
	uint64_t mask = width == 64 ? ~0ull : (1ull << width) - 1, word = 0;

	for (unsigned i = 0; i < unit; i++)
		word = word << 8 | bytes[i];
	word = (word & ~(mask << lsb)) | (value & mask) << lsb;
	for (unsigned i = unit; i-- > 0; word >>= 8)
		bytes[i] = (uint8_t)word;
}

static inline uint64_t rnic_get_be(const void *buffer, unsigned at, unsigned unit, unsigned lsb, unsigned width)
{
	const uint8_t *bytes = (const uint8_t *)buffer + at;
	uint64_t mask = width == 64 ? ~0ull : (1ull << width) - 1, word = 0;

	for (unsigned i = 0; i < unit; i++)
		word = word << 8 | bytes[i];
	return word >> lsb & mask;
}

#endif
