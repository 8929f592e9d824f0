/* Datagram rsockets. */
#ifndef RNIC_RDMACM_DGRAM_H
#define RNIC_RDMACM_DGRAM_H

#include "rdmacm_rs.h"

extern const struct rs_ops dgram_ops;

#endif
