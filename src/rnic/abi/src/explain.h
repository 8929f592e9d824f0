/* Lines that say why a verb is refused, where RNIC_EXPLAIN asks for them: `rnic exec --explain`. */
#ifndef RNIC_EXPLAIN_H
#define RNIC_EXPLAIN_H

#include <stdbool.h>
#include <stddef.h>

/* RNIC_EXPLAIN is set. rnic_reasons.h has a function for each reason, which checks it first. */
extern bool explaining;

/* Write a line "rnic: VERB: TEXT" to stderr. Each kind is written WHY_LINES times, and counted from then on. */
void explain(unsigned kind, const char *verb, const char *format, ...) __attribute__((cold, format(printf, 3, 4)));

/* Return whether descriptor 2 is still what it was when the program began, and lines are asked for. */
bool explain_has_stderr(void);

/* Write what the NIC process says of a command that it refused: a kind, and "VERB: TEXT". */
void explain_refusal(const void *answer, size_t bytes) __attribute__((cold));

#endif
