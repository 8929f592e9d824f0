/* CRC-32 of zlib and the ICRC: `state` is 0, or the CRC of the preceding bytes. Any length and alignment. */
#ifndef RNIC_ENGINE_CRC32_H
#define RNIC_ENGINE_CRC32_H

#include <stdint.h>

/* Compute the CRC by carry-less multiplication if that is available and faster, else by tables. An engine_crc. */
uint32_t engine_crc32(uint32_t state, const uint8_t *data, uint64_t length);

/* Compute the CRC while copying the bytes to `to`, which must not overlap: the CRC covers exactly the copied bytes. */
uint32_t engine_crc32_copy(uint32_t state, uint8_t *to, const uint8_t *from, uint64_t length);

/* Return the value whose XOR with a state has the effect of `change` XORed to the fifth byte from there. */
uint32_t engine_crc32_fifth(uint8_t change);

/* Compute the CRC of four bytes by tables: for many calls in a row, while the tables stay in the cache. */
uint32_t engine_crc32_word(const uint8_t *word);

/* Set the number of 128-bit blocks multiplied at once, for tests: `wanted`, or fewer if the processor supports fewer.
 * The default is the maximum (4, 2 or 1), or 0 for the tables if they are faster, as in emulators. */
unsigned engine_crc32_blocks(unsigned wanted);

#endif
