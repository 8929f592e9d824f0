/* CRC-32 as zlib and the ICRC have it: `state` is 0, or the CRC of what came before. Any length, any alignment. */
#ifndef RNIC_ENGINE_CRC32_H
#define RNIC_ENGINE_CRC32_H

#include <stdint.h>

/* By carry-less multiplication where the processor has it and is quicker with it, by tables elsewhere. An engine_crc. */
uint32_t engine_crc32(uint32_t state, const uint8_t *data, uint64_t length);

/* The same, and the bytes are copied to `to`, which they do not overlap: what is covered is what was copied. */
uint32_t engine_crc32_copy(uint32_t state, uint8_t *to, const uint8_t *from, uint64_t length);

/* What, added to a state, does to the CRC what `change` added to the fifth byte from there would do. */
uint32_t engine_crc32_fifth(uint8_t change);

/* Of four bytes from 0 on, always by tables: for who has many such and nothing that drives those from the near cache. */
uint32_t engine_crc32_word(const uint8_t *word);

/* How many blocks of 128 bits are multiplied at once from now on, for tests: `wanted` or fewer, by what the processor has. By
 * itself it takes the most, 4, 2 or 1, or 0, the tables, where they are quicker: in emulators. */
unsigned engine_crc32_blocks(unsigned wanted);

#endif
