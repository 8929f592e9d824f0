/* Queries of the extended interface. */
#ifndef RNIC_QUERY_H
#define RNIC_QUERY_H

#include <stddef.h>
#include <stdint.h>

#include "verbs_abi.h"

int rnic_query_port(struct ibv_context *verbs, uint8_t port, struct ibv_port_attr *attr, size_t bytes);
int rnic_query_rt_values(struct ibv_context *verbs, struct ibv_values_ex *values);
int rnic_query_device_ex(struct ibv_context *verbs, const struct ibv_query_device_ex_input *input,
			 struct ibv_device_attr_ex *attr, size_t bytes);

int ibv_query_gid_type(struct ibv_context *verbs, uint8_t port, unsigned int index, int *type);

#endif
