"""Setting up connections: the out-of-band exchange of this project and of rdma-core's ping-pong programs."""
