"""Connection setup: InfiniBand CM, rdma_cm, and the out-of-band exchange of rdma-core's ping-pong programs."""
