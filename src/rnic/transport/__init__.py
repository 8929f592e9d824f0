"""The transport: requester, completer and responder of RC, UC and UD as pure state machines.

This package is the reference against which other NICs may be checked, so readability comes first.
:mod:`rnic.transport.host` is its interface to the device. MIDDLE packets of long messages are handled as runs
(:mod:`rnic.transport.runs`).
"""
