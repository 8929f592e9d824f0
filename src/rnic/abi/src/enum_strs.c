/* The names of enumerations. */
#include <stddef.h>

#include "compiler.h"

EXPORT const char *ibv_node_type_str(int type)
{
	static const char *const names[] = { "unknown",		  "InfiniBand channel adapter",
					     "InfiniBand switch", "InfiniBand router",
					     "iWARP NIC",	  "usNIC",
					     "usNIC UDP",	  "unspecified" };

	return type >= 1 && (size_t)type < COUNT(names) ? names[type] : names[0];
}

EXPORT const char *ibv_port_state_str(int state)
{
	static const char *const names[] = {
		"no state change (NOP)", "down", "init", "armed", "active", "active defer"
	};

	return state >= 0 && (size_t)state < COUNT(names) ? names[state] : "unknown";
}

EXPORT const char *ibv_event_type_str(int type)
{
	static const char *const names[] = {
		"CQ error",
		"local work queue catastrophic error",
		"invalid request local work queue error",
		"local access violation work queue error",
		"communication established",
		"send queue drained",
		"path migrated",
		"path migration request error",
		"local catastrophic error",
		"port active",
		"port error",
		"LID change",
		"P_Key change",
		"SM change",
		"SRQ catastrophic error",
		"SRQ limit reached",
		"last WQE reached",
		"client reregistration",
		"GID table change",
		"WQ fatal",
	};

	return type >= 0 && (size_t)type < COUNT(names) ? names[type] : "unknown";
}

EXPORT const char *ibv_wc_status_str(int status)
{
	static const char *const names[] = {
		"success",
		"local length error",
		"local QP operation error",
		"local EE context operation error",
		"local protection error",
		"Work Request Flushed Error",
		"memory management operation error",
		"bad response error",
		"local access error",
		"remote invalid request error",
		"remote access error",
		"remote operation error",
		"transport retry counter exceeded",
		"RNR retry counter exceeded",
		"local RDD violation error",
		"remote invalid RD request",
		"aborted error",
		"invalid EE context number",
		"invalid EE context state",
		"fatal error",
		"response timeout error",
		"general error",
		"TM error",
		"TM software rendezvous",
	};

	return status >= 0 && (size_t)status < COUNT(names) ? names[status] : "unknown";
}
