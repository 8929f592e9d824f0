/* Apply rules of a fault script in the library: failing posts, changed or delayed completions. */
#ifndef RNIC_ON_COMMAND_H
#define RNIC_ON_COMMAND_H

#include <stdint.h>

struct rnic_context;
struct rnic_cq;
struct rnic_qp;

/* Read a context's rules, which only a fault script makes, and apply them in its functions. */
int on_command_open(struct rnic_context *context);
void on_command_close(struct rnic_context *context);
/* Reset the counts of a queue pair's number: the queue pair was created just now. */
void on_command_new_qp(struct rnic_context *context, uint32_t number);
/* Make the functions of an extended completion queue or queue pair, already filled in, apply the rules. */
void on_command_fill_cq(struct rnic_context *context, struct rnic_cq *cq);
void on_command_fill_qp(struct rnic_context *context, struct rnic_qp *qp);

#endif
