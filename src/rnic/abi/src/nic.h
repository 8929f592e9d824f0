/* The NIC process: its devices, and a context's connection to it. */
#ifndef RNIC_NIC_H
#define RNIC_NIC_H

struct rnic_context;
struct rnic_device;

int nic_list(int socket, struct rnic_device ***list);
int nic_open(struct rnic_context *context, const char *name);
void nic_close(struct rnic_context *context);

#endif
