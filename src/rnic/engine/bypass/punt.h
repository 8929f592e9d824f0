/* What a slot's engine leaves to the NIC process. */
#ifndef RNIC_ENGINE_PUNT_H
#define RNIC_ENGINE_PUNT_H

#include "bypass/bypass_private.h"

/* Ask the NIC process for it, counted by `reason`. */
void bypass_punt_to_nic(struct bypass *bypass, const struct bypass_punt *punted, struct bypass_answer *answer, uint64_t *reason);
/* Do what a round stopped for; 0, or -1 where nobody answers. */
int bypass_handle_stop(struct bypass *bypass, const struct engine_stop_info *told);

#endif
