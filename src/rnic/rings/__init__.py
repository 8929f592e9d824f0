"""Byte-exact queue entries and the producer and consumer rings that hold them."""
