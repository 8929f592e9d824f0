"""A RoCEv2 NIC as gateware, in blocks; each is tested bit for bit against the corresponding software function."""
