/* Functions that other vendors' drivers call when they load, and common code of the generated stubs. */
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
