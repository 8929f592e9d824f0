"""Counters and the tracer protocol. Both are passed to a device when it is created; nothing is global."""

from rnic.trace.counters import Counters
from rnic.trace.guard import Guard, Report
from rnic.trace.tracer import ListTracer, NullTracer, TraceEvent, Tracer

__all__ = ["Counters", "Guard", "ListTracer", "NullTracer", "Report", "TraceEvent", "Tracer"]
