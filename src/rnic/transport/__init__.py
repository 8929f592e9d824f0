"""The transport: requester, completer and responder of RC, UC and UD as pure state machines.

This room is the reference that others may check a NIC against: readable first. What it needs from the device
around it is in :mod:`rnic.transport.host`; the middles of long messages go as runs (:mod:`rnic.transport.runs`).
"""
