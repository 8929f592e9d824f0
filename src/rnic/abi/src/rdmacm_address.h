/* Addresses: sockaddr and GID, and device lookup. */
#ifndef RNIC_RDMACM_ADDRESS_H
#define RNIC_RDMACM_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmacm_abi.h"

struct cm_device;

int cm_gid_of(const struct sockaddr *address, union ibv_gid *gid, uint16_t *port);
void cm_address_of(const union ibv_gid *gid, uint16_t port, int family, struct sockaddr_storage *address);
bool cm_gid_is_any(const union ibv_gid *gid);
/* Return the device with the kernel's source address for a destination, else the first of the family. */
struct cm_device *cm_device_for(const struct sockaddr *address);
socklen_t cm_addrlen(const struct sockaddr *address);

#endif
