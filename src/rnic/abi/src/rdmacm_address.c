/* Addresses: sockaddr and GID, device lookup, and rdma_getaddrinfo. */
#define _GNU_SOURCE
#include "rdmacm_address.h"

#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler.h"
#include "errors.h"
#include "rdmacm_devices.h"

static const uint8_t mapped[12] = { [10] = 0xFF, [11] = 0xFF };

socklen_t cm_addrlen(const struct sockaddr *address)
{
	return address->sa_family == AF_INET  ? sizeof(struct sockaddr_in) :
	       address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) :
						0;
}

int cm_gid_of(const struct sockaddr *address, union ibv_gid *gid, uint16_t *port)
{
	const struct sockaddr_in *four = (const void *)address;
	const struct sockaddr_in6 *six = (const void *)address;

	memset(gid, 0, sizeof *gid);
	*port = 0;
	if (!address)
		return 0;
	switch (address->sa_family) {
	case AF_INET:
		memcpy(gid->raw, mapped, sizeof mapped);
		memcpy(gid->raw + 12, &four->sin_addr, 4);
		*port = ntohs(four->sin_port);
		return 0;
	case AF_INET6:
		memcpy(gid->raw, &six->sin6_addr, 16);
		*port = ntohs(six->sin6_port);
		return 0;
	default:
		return EAFNOSUPPORT;
	}
}

static bool gid_is_ipv4(const union ibv_gid *gid)
{
	return memcmp(gid->raw, mapped, sizeof mapped) == 0;
}

bool cm_gid_is_any(const union ibv_gid *gid)
{
	static const uint8_t zeros[16];

	return memcmp(gid->raw, zeros, 16) == 0 || (gid_is_ipv4(gid) && memcmp(gid->raw + 12, zeros, 4) == 0);
}

void cm_address_of(const union ibv_gid *gid, uint16_t port, int family, struct sockaddr_storage *address)
{
	struct sockaddr_in *four = (void *)address;
	struct sockaddr_in6 *six = (void *)address;
	bool plain = gid_is_ipv4(gid) || (family == AF_INET && cm_gid_is_any(gid));

	memset(address, 0, sizeof *address);
	if (plain) {
		four->sin_family = AF_INET;
		four->sin_port = htons(port);
		memcpy(&four->sin_addr, gid->raw + 12, 4);
	} else {
		six->sin6_family = AF_INET6;
		six->sin6_port = htons(port);
		memcpy(&six->sin6_addr, gid->raw, 16);
	}
}

struct cm_device *cm_device_for(const struct sockaddr *address)
{
	struct sockaddr_storage own;
	socklen_t bytes = sizeof own;
	union ibv_gid gid;
	uint16_t port;
	int probe;

	if (cm_gid_of(address, &gid, &port))
		return NULL;
	probe = socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (probe >= 0) {
		union ibv_gid from;
		bool known = connect(probe, address, cm_addrlen(address)) == 0 &&
			     getsockname(probe, (struct sockaddr *)&own, &bytes) == 0 &&
			     cm_gid_of((struct sockaddr *)&own, &from, &port) == 0;
		struct cm_device *device = known ? cm_device_by_gid(&from, false) : NULL;

		close(probe);
		if (device)
			return device;
	}
	for (struct cm_device *device = cm_devices(); device; device = device->next)
		if (gid_is_ipv4(&device->gid) == gid_is_ipv4(&gid))
			return device;
	return NULL;
}

/* ---- rdma_getaddrinfo */

static int copy_address(const struct sockaddr *from, socklen_t bytes, struct sockaddr **to, socklen_t *to_bytes)
{
	if (!from || !bytes)
		return 0;
	*to = malloc(bytes);
	if (!*to)
		return EAI_MEMORY;
	memcpy(*to, from, bytes);
	*to_bytes = bytes;
	return 0;
}

EXPORT void rdma_freeaddrinfo(struct rdma_addrinfo *info)
{
	while (info) {
		struct rdma_addrinfo *next = info->ai_next;

		free(info->ai_src_addr);
		free(info->ai_dst_addr);
		free(info->ai_src_canonname);
		free(info->ai_dst_canonname);
		free(info->ai_route);
		free(info->ai_connect);
		free(info);
		info = next;
	}
}

static int fill_addrinfo(struct rdma_addrinfo *info, const char *node, const char *service,
			 const struct rdma_addrinfo *hints)
{
	struct addrinfo wanted = { .ai_socktype = SOCK_STREAM, .ai_family = info->ai_family }, *found = NULL;
	bool passive = info->ai_flags & RAI_PASSIVE;
	int error = 0;

	if (info->ai_port_space == RDMA_PS_UDP)
		wanted.ai_socktype = SOCK_DGRAM;
	wanted.ai_flags = (passive ? AI_PASSIVE : 0) | (info->ai_flags & RAI_NUMERICHOST ? AI_NUMERICHOST : 0);
	if (node || service) {
		error = getaddrinfo(node, service, &wanted, &found);
		if (error)
			return error;
		info->ai_family = found->ai_family;
		if (passive)
			error = copy_address(found->ai_addr, found->ai_addrlen, &info->ai_src_addr, &info->ai_src_len);
		else
			error = copy_address(found->ai_addr, found->ai_addrlen, &info->ai_dst_addr, &info->ai_dst_len);
		freeaddrinfo(found);
	}
	if (!error && hints && hints->ai_src_len && !info->ai_src_addr)
		error = copy_address(hints->ai_src_addr, hints->ai_src_len, &info->ai_src_addr, &info->ai_src_len);
	if (!error && hints && hints->ai_dst_len && !info->ai_dst_addr)
		error = copy_address(hints->ai_dst_addr, hints->ai_dst_len, &info->ai_dst_addr, &info->ai_dst_len);
	if (!error && !passive && info->ai_dst_addr && !info->ai_src_addr && !(info->ai_flags & RAI_NOROUTE)) {
		struct cm_device *device = cm_device_for(info->ai_dst_addr);
		struct sockaddr_storage own;

		if (device) {
			cm_address_of(&device->gid, 0, info->ai_family, &own);
			error = copy_address((struct sockaddr *)&own, cm_addrlen((struct sockaddr *)&own),
					     &info->ai_src_addr, &info->ai_src_len);
		}
	}
	return error;
}

EXPORT int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
			    struct rdma_addrinfo **result)
{
	struct rdma_addrinfo *info;
	int error;

	if (!node && !service && !hints)
		return rdma_seterrno(EINVAL);
	info = calloc(1, sizeof *info);
	if (!info)
		return rdma_seterrno(ENOMEM);
	if (hints) {
		info->ai_flags = hints->ai_flags;
		info->ai_family = hints->ai_family;
		info->ai_qp_type = hints->ai_qp_type;
		info->ai_port_space = hints->ai_port_space;
	}
	if (!info->ai_port_space)
		info->ai_port_space = info->ai_qp_type == IBV_QPT_UD ? RDMA_PS_UDP : RDMA_PS_TCP;
	if (!info->ai_qp_type)
		info->ai_qp_type = info->ai_port_space == RDMA_PS_UDP || info->ai_port_space == RDMA_PS_IPOIB ?
					   IBV_QPT_UD :
					   IBV_QPT_RC;
	error = fill_addrinfo(info, node, service, hints);
	if (error) {
		rdma_freeaddrinfo(info);
		return error; /* as getaddrinfo */
	}
	*result = info;
	return 0;
}

static uint16_t port_of(const struct sockaddr_storage *address)
{
	if (address->ss_family == AF_INET)
		return ((const struct sockaddr_in *)address)->sin_port;
	if (address->ss_family == AF_INET6)
		return ((const struct sockaddr_in6 *)address)->sin6_port;
	return 0;
}

EXPORT uint16_t rdma_get_src_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.src_storage);
}

EXPORT uint16_t rdma_get_dst_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.dst_storage);
}
