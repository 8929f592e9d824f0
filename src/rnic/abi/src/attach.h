/* Messages between a program's libraries and the NIC process (rnic.spec.attach). */
#ifndef RNIC_ATTACH_H
#define RNIC_ATTACH_H

#include "bypass/rpc.h"

/* Print the message of a refusal. */
void log_refusal(const struct rpc_reply *reply);
/* Connect and send HELLO. Returns the socket, or -1 with errno. */
int nic_connect(uint32_t *devices, int *pid);

#endif
