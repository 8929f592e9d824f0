/* Division of numbers that nearly always are small: processors of some years take twice as long for 64 bits as for 32, and
 * a message has ten of them on its way. */
#ifndef RNIC_ENGINE_DIVISION_H
#define RNIC_ENGINE_DIVISION_H

#include <stdint.h>

static inline uint64_t div64(uint64_t number, uint64_t by)
{
	return (number | by) >> 32 ? number / by : (uint32_t)number / (uint32_t)by;
}

static inline uint64_t mod64(uint64_t number, uint64_t by)
{
	return (number | by) >> 32 ? number % by : (uint32_t)number % (uint32_t)by;
}

/* Parts of `size` bytes, the last of which may be shorter, that `length` bytes make: at least one. */
static inline uint64_t ceil_div(uint64_t length, uint64_t size)
{
	return length <= size ? 1 : div64(length + size - 1, size);
}

#endif
