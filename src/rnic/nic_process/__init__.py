"""The NIC process: it serves devices to its user's programs, which connect by a socket."""
