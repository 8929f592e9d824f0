/* Named steps: both executors process a packet in steps with the same names and order.
 *
 * A build with -DENGINE_TRACE_STEPS calls engine_trace_step at the start of each step; other builds have no such calls
 * (tests/unit/engine/test_steps.py). */
#ifndef RNIC_ENGINE_STEP_H
#define RNIC_ENGINE_STEP_H

#ifdef ENGINE_TRACE_STEPS
void engine_trace_step(const char *name);
#define TRACE_STEP(name) engine_trace_step(#name)
#else
#define TRACE_STEP(name) ((void)0)
#endif

/* Run one step of a chain: false if processing ends there. */
#define STEP(name, request) (TRACE_STEP(name), name(request))

#endif
