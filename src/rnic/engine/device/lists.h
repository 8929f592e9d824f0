/* Doubly linked lists of records, by their offsets (state/lists.py). */
#ifndef RNIC_ENGINE_LISTS_H
#define RNIC_ENGINE_LISTS_H

#include "device/records.h"

/* Two words of an owner's record, first and last; a member's next and previous lie `link` bytes into its own. */
void engine_list_append(const struct engine_sched *sched, uint64_t *ends, size_t link, uint64_t item);
void engine_list_insert(const struct engine_sched *sched, uint64_t *ends, size_t link, uint64_t item, uint64_t before);
void engine_list_unlink(const struct engine_sched *sched, uint64_t *ends, size_t link, uint64_t item);

#endif
