/* Access integers and bit fields in either byte order. The engine is compiled for little-endian machines only; with a
 * constant size, each access is one or two instructions. */
#ifndef RNIC_ENGINE_BYTEORDER_H
#define RNIC_ENGINE_BYTEORDER_H

#include <stdint.h>
#include <string.h>

static inline uint64_t be_load(const uint8_t *at, unsigned bytes)
{
	uint64_t value = 0;
	if (bytes == 8) {
		memcpy(&value, at, 8);
		return __builtin_bswap64(value);
	}
	if (bytes == 4) {
		uint32_t word;
		memcpy(&word, at, 4);
		return __builtin_bswap32(word);
	}
	for (unsigned i = 0; i < bytes; i++)
		value = value << 8 | at[i];
	return value;
}

static inline void be_store(uint8_t *at, unsigned bytes, uint64_t value)
{
	if (bytes == 8) {
		value = __builtin_bswap64(value);
		memcpy(at, &value, 8);
		return;
	}
	if (bytes == 4) {
		uint32_t word = __builtin_bswap32((uint32_t)value);
		memcpy(at, &word, 4);
		return;
	}
	for (unsigned i = bytes; i--; value >>= 8)
		at[i] = (uint8_t)value;
}

static inline uint64_t le_load(const uint8_t *at, unsigned bytes)
{
	uint64_t value = 0;
	if (bytes == 8 || bytes == 4) {
		memcpy(&value, at, bytes);
		return value;
	}
	for (unsigned i = bytes; i--;)
		value = value << 8 | at[i];
	return value;
}

static inline void le_store(uint8_t *at, unsigned bytes, uint64_t value)
{
	memcpy(at, &value, bytes);
}

static inline uint64_t bits_of(unsigned width)
{
	return width < 64 ? ((uint64_t)1 << width) - 1 : ~(uint64_t)0;
}

/* A field of a big-endian layout: be_get(qpc, QPC_STATE). */
static inline uint64_t be_get(const uint8_t *base, unsigned byte, unsigned unit, unsigned lsb, unsigned width)
{
	return be_load(base + byte, unit) >> lsb & bits_of(width);
}

static inline void be_put(uint8_t *base, unsigned byte, unsigned unit, unsigned lsb, unsigned width, uint64_t value)
{
	uint64_t mask = bits_of(width) << lsb;
	be_store(base + byte, unit, (be_load(base + byte, unit) & ~mask) | (value << lsb & mask));
}

#endif
