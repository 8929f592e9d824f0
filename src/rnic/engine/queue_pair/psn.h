/* PSN arithmetic (IBA vol. 1, chapter 9; spec/psn.py). */
#ifndef RNIC_ENGINE_PSN_H
#define RNIC_ENGINE_PSN_H

#include "queue_pair/arithmetic.h"
#include "state.h"

/* Return the signed distance from b to a: negative if a is before b. */
static inline int64_t psn_diff(uint64_t a, uint64_t b)
{
	return (int64_t)((a - b + (1u << 23)) & PSN_MASK) - (1 << 23);
}

/* Return the number of PSNs that `length` bytes use, at least one. */
static inline uint64_t psn_count(uint64_t length, uint64_t mtu)
{
	return ceil_div(length, mtu);
}

#endif
