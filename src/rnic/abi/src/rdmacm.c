/*
 * librdmacm: its names, so that programs load. The connection manager itself is not here yet: calls fail with ENOSYS,
 * and the first says so in words.
 */
#include "stubs.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

void refused(int error)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&said))
		fputs("rnic: the RDMA connection manager (rdma_cm) is not supported yet: "
		      "use the program's way of exchanging addresses over a socket\n", stderr);
	errno = error;
}

EXPORT const char *rdma_event_str(int event)
{
	static const char *const names[] = {
		"RDMA_CM_EVENT_ADDR_RESOLVED", "RDMA_CM_EVENT_ADDR_ERROR", "RDMA_CM_EVENT_ROUTE_RESOLVED",
		"RDMA_CM_EVENT_ROUTE_ERROR", "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
		"RDMA_CM_EVENT_CONNECT_ERROR", "RDMA_CM_EVENT_UNREACHABLE", "RDMA_CM_EVENT_REJECTED",
		"RDMA_CM_EVENT_ESTABLISHED", "RDMA_CM_EVENT_DISCONNECTED", "RDMA_CM_EVENT_DEVICE_REMOVAL",
		"RDMA_CM_EVENT_MULTICAST_JOIN", "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE",
		"RDMA_CM_EVENT_TIMEWAIT_EXIT",
	};

	return event >= 0 && (size_t)event < sizeof names / sizeof names[0] ? names[event] : "UNKNOWN EVENT";
}

EXPORT void rdma_free_devices(void **list)
{
	(void)list; /* rdma_get_devices gave none */
}

EXPORT void rdma_freeaddrinfo(void *info)
{
	(void)info; /* rdma_getaddrinfo gave none */
}

EXPORT uint16_t rdma_get_src_port(void *id)
{
	(void)id;
	return 0;
}

EXPORT uint16_t rdma_get_dst_port(void *id)
{
	(void)id;
	return 0;
}
