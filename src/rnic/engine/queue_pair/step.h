/* Named steps: both executors take a packet through steps of the same names in the same order.
 *
 * A build with -DENGINE_TRACE_STEPS calls engine_trace_step with the name of each step as it begins; any other has
 * nothing of it (tests/unit/engine/test_steps.py). */
#ifndef RNIC_ENGINE_STEP_H
#define RNIC_ENGINE_STEP_H

#ifdef ENGINE_TRACE_STEPS
void engine_trace_step(const char *name);
#define TRACE_STEP(name) engine_trace_step(#name)
#else
#define TRACE_STEP(name) ((void)0)
#endif

/* Do one step of a chain: false if the packet ends there. */
#define STEP(name, request) (TRACE_STEP(name), name(request))

#endif
