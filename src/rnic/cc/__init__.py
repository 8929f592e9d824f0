"""Congestion control: what a queue pair may have in flight, and how fast it may send (004 7.4).

Sans I/O and below the transport. :mod:`rnic.cc.control` is the protocol that each congestion control follows,
:mod:`rnic.cc.controlled` carries a control's answers into the words of a queue pair, which the transport and the
engine obey; :mod:`rnic.cc.settings` finds controls by name.
"""
