/* GIDs. */
#ifndef RNIC_GID_H
#define RNIC_GID_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Return whether a GID is an IPv4 address: ::ffff:a.b.c.d, or for a group ff0e::ffff:a.b.c.d as well. */
static inline bool gid_is_v4mapped(const uint8_t *gid)
{
	static const uint8_t mapped[12] = { [10] = 0xFF, [11] = 0xFF };
	static const uint8_t mapped_group[12] = { 0xFF, 0x0E, [10] = 0xFF, [11] = 0xFF };

	return memcmp(gid, mapped, sizeof mapped) == 0 ||
	       (memcmp(gid, mapped_group, sizeof mapped_group) == 0 && gid[12] >> 4 == 0xE);
}

/* Return whether a GID is a link-local IPv6 address. */
static inline bool gid_is_link_local(const uint8_t *gid)
{
	return gid[0] == 0xFE && (gid[1] & 0xC0) == 0x80;
}

#endif
