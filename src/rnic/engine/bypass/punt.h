/* Punts of a program's engine to the NIC process. */
#ifndef RNIC_ENGINE_PUNT_H
#define RNIC_ENGINE_PUNT_H

#include "bypass/bypass_private.h"

/* Punt to the NIC process, and count it by `reason`. */
void bypass_punt_to_nic(struct bypass *bypass, const struct bypass_punt *punt, struct bypass_answer *answer,
			uint64_t *reason);
/* Handle a stop of a round; 0, or -1 if the NIC process has gone. */
int bypass_handle_stop(struct bypass *bypass, const struct engine_stop_info *info);

#endif
