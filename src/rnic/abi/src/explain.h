/* Print why a verb is refused, if RNIC_EXPLAIN is set: `rnic exec --explain`. */
#ifndef RNIC_EXPLAIN_H
#define RNIC_EXPLAIN_H

#include <stdbool.h>
#include <stddef.h>

/* RNIC_EXPLAIN is set. rnic_reasons.h has a function for each reason, which checks it first. */
extern bool explaining;

/* Write a line "rnic: VERB: TEXT" to stderr. Each kind is written WHY_LINES times; further ones are counted. */
void explain(unsigned kind, const char *verb, const char *format, ...) __attribute__((cold, format(printf, 3, 4)));

/* Return whether descriptor 2 is still the file of program start, and lines are enabled. */
bool explain_has_stderr(void);

/* Write the NIC process's reason for a refused command: a kind, and "VERB: TEXT". */
void explain_refusal(const void *answer, size_t bytes) __attribute__((cold));

#endif
