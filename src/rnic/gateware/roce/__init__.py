"""A RoCEv2 NIC as gateware, block by block; each is held to the software's function of its kind, bit for bit."""
