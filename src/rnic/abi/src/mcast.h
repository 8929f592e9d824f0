/* Multicast groups of queue pairs. */
#ifndef RNIC_MCAST_H
#define RNIC_MCAST_H

struct rnic_qp;

/* Drop the groups of a queue pair that is being destroyed. */
void mcast_free(struct rnic_qp *qp);

#endif
