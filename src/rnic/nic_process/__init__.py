"""The NIC process: it serves devices to the programs of its user, which reach it by a socket."""
