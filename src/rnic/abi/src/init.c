/* Functions that other devices' drivers call as they load, and what the generated functions that only refuse have in
 * common. */
#include "stubs.h"

#include <stdbool.h>
#include <stdint.h>

EXPORT void verbs_register_driver_33(const void *operations UNUSED)
{
}

EXPORT void verbs_register_driver_34(const void *operations UNUSED)
{
}

EXPORT void verbs_register_driver_65(const void *operations UNUSED)
{
}

EXPORT void ibv_register_driver(const char *name UNUSED, void *init UNUSED)
{
}

EXPORT void __verbs_log(void *context UNUSED, uint32_t level UNUSED, const char *format UNUSED, ...)
{
}

EXPORT bool verbs_allow_disassociate_destroy;

void refused(int error)
{
	errno = error;
}
