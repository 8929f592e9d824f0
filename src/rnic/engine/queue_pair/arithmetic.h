/* Arithmetic of unsigned numbers. Most of them are small: 64-bit division takes twice as long as 32-bit division on
 * some processors, and a message needs about ten divisions. */
#ifndef RNIC_ENGINE_ARITHMETIC_H
#define RNIC_ENGINE_ARITHMETIC_H

#include <stdint.h>

static inline uint64_t lesser(uint64_t one, uint64_t other)
{
	return one < other ? one : other;
}

static inline uint64_t greater(uint64_t one, uint64_t other)
{
	return one > other ? one : other;
}

static inline uint64_t div64(uint64_t number, uint64_t by)
{
	return (number | by) >> 32 ? number / by : (uint32_t)number / (uint32_t)by;
}

static inline uint64_t mod64(uint64_t number, uint64_t by)
{
	return (number | by) >> 32 ? number % by : (uint32_t)number % (uint32_t)by;
}

/* Return the number of parts of `size` bytes in `length` bytes, at least one; the last may be shorter. */
static inline uint64_t ceil_div(uint64_t length, uint64_t size)
{
	return length <= size ? 1 : div64(length + size - 1, size);
}

#endif
