/* CRC-32 of zlib and the ICRC: `state` is 0, or the CRC of what came before. Any length, any alignment. */
#ifndef RNIC_ENGINE_CRC32_H
#define RNIC_ENGINE_CRC32_H

#include <stdint.h>

/* By carry-less multiplication if the processor has it and it is faster, else by tables. An engine_crc. */
uint32_t engine_crc32(uint32_t state, const uint8_t *data, uint64_t length);

/* The same, and copy the bytes to `to`, which they do not overlap: what is covered is what was copied. */
uint32_t engine_crc32_copy(uint32_t state, uint8_t *to, const uint8_t *from, uint64_t length);

/* Return what has the same effect, XORed to a state, as `change` XORed to the fifth byte from there. */
uint32_t engine_crc32_fifth(uint8_t change);

/* The CRC of four bytes, always by tables: for many such in a row, while the tables stay in the cache. */
uint32_t engine_crc32_word(const uint8_t *word);

/* Set how many blocks of 128 bits are multiplied at once, for tests: `wanted`, or fewer if the processor has no more.
 * The default is the most, 4, 2 or 1, or 0, the tables, if they are faster: in emulators. */
unsigned engine_crc32_blocks(unsigned wanted);

#endif
