/*
 * Implemented symbols of a private version of rdma-core with names of version 34. build.py generates a file from this for each such version, and replaces NUMBER by its number: a definition of the plain name in the same file would be hidden.
 */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compiler.h"
#include "query.h"
#include "verbs_abi.h"

#define PRIVATE(name) SYMBOL_VERSION(private_NUMBER_##name, #name "@IBVERBS_PRIVATE_NUMBER")

PRIVATE(__verbs_log)
EXPORT void private_NUMBER___verbs_log(void *context UNUSED, uint32_t level UNUSED, const char *format UNUSED, ...)
{
}

PRIVATE(verbs_allow_disassociate_destroy)
EXPORT bool private_NUMBER_verbs_allow_disassociate_destroy;

PRIVATE(ibv_query_gid_type)
EXPORT int private_NUMBER_ibv_query_gid_type(struct ibv_context *verbs, uint8_t port, unsigned int index, int *type)
{
	return ibv_query_gid_type(verbs, port, index, type);
}

PRIVATE(ibv_read_ibdev_sysfs_file)
EXPORT int private_NUMBER_ibv_read_ibdev_sysfs_file(char *buffer UNUSED, size_t size UNUSED, void *sysfs UNUSED,
						    const char *format UNUSED, ...)
{
	errno = ENOENT;
	return -1;
}
