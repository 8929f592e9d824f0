"""Counters and the tracer protocol. Both are passed in when a device is made; nothing here is global."""

from rnic.trace.counters import Counters
from rnic.trace.guard import Guard, Report
from rnic.trace.tracer import ListTracer, NullTracer, TraceEvent, Tracer

__all__ = ["Counters", "Guard", "ListTracer", "NullTracer", "Report", "TraceEvent", "Tracer"]
