/* Copy memory for a NIC process that may not access this program's memory. */
#ifndef RNIC_COPIER_H
#define RNIC_COPIER_H

#include <stdint.h>

struct rnic_context;

int copier_start(struct rnic_context *context, int *peer, uint32_t *number);
void copier_stop(struct rnic_context *context);
void copier_after_fork(struct rnic_context *context);

#endif
