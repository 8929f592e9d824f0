"""Port states and subtypes of port change events."""

PORT_DOWN = 1
PORT_INIT = 2
PORT_ARMED = 3
PORT_ACTIVE = 4
"""Port states, also the subtypes of a port change event."""
PORT_PKEY = 7
PORT_GUID = 8
"""Further subtypes, numbered as in mlx5: the P_Key table or the GID table changed."""
