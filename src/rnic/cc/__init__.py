"""Congestion control: windows and rates of queue pairs (004 7.4).

Sans I/O and below the transport. :mod:`rnic.cc.control` is the interface of a congestion control.
:mod:`rnic.cc.controlled` stores its decisions in a queue pair's record, where the transport and the engine read them.
:mod:`rnic.cc.settings` has the settings, with the control by name.
"""
