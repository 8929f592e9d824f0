/* Memory that one end of a stream maps and the other writes to. */
#ifndef RNIC_RDMACM_IOMAP_H
#define RNIC_RDMACM_IOMAP_H

#include "rdmacm_rs.h"

struct rs_iomap { /* as announced to the peer */
	uint64_t offset;
	struct rs_sge sge;
};

struct rs_iomap_mr { /* memory that this side lets the peer write to */
	struct ibv_mr *mr;
	uint64_t offset;
	bool sent;
};

/* Tell the peer of memory that it may write to. */
int stream_send_iomaps(struct rsocket *rs, int flags);

#endif
