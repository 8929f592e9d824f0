/* Doubly linked lists of records, linked by offsets (state/lists.py). */
#ifndef RNIC_ENGINE_LISTS_H
#define RNIC_ENGINE_LISTS_H

#include "device/records.h"

/* `ends` is two words of the owner's record, first and last. Each item has next and previous `link` bytes into its
 * record. */
void engine_list_append(const struct engine_sched *sched, uint64_t *ends, size_t link, uint64_t item);
/* Insert an item after `before`, or first if that is 0. */
void engine_list_insert(const struct engine_sched *sched, uint64_t *ends, size_t link, uint64_t item, uint64_t before);
void engine_list_unlink(const struct engine_sched *sched, uint64_t *ends, size_t link, uint64_t item);

#endif
