"""Congestion control: what a notification does to a queue pair's sending, and how fast it may send (004 7.4).

Sans I/O and below the transport: it steers a :class:`~rnic.cc.limit.Flight`, which the requester is.
"""
