/*
 * Files /dev/infiniband/umadN for programs that `rnic exec` shows devices, so that the system's libibumad, and the tools
 * on it, send and receive management datagrams.
 *
 * A file is one end of a pair of sockets; the NIC process has the other (rnic.nic_process.umad). Each datagram is one
 * message with the kernel's header, so that read, poll and select pass through. Here are the requests of ioctl, and the
 * refusal of what a RoCE port has no queue pair for: subnet management. Registering its class is taken, as tools do that
 * never send any.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "compiler.h"
#include "dlsym_next.h"
#include "nic_process.h"
#include "rnic_hw.h"

#ifdef __GLIBC__

enum {
	MAGIC = 0x1b, /* of the kernel's rdma/rdma_user_ioctl.h; the layouts below are those of rdma/ib_user_mad.h */
	REGISTER_BYTES = 28,
	REGISTER2_BYTES = 40,
	HEADER_BYTES = 64,
	RMPP_HEADER_BYTES = 36,
	CLASS_AT = HEADER_BYTES + 1,
	CLASS_LID_ROUTED = 0x01,
	CLASS_DIRECTED = 0x81,
};
#define REGISTER _IOC(_IOC_READ | _IOC_WRITE, MAGIC, 1, REGISTER_BYTES)
#define UNREGISTER _IOC(_IOC_WRITE, MAGIC, 2, sizeof(uint32_t))
#define ENABLE_PKEY _IOC(_IOC_NONE, MAGIC, 3, 0)
#define REGISTER2 _IOC(_IOC_READ | _IOC_WRITE, MAGIC, 4, REGISTER2_BYTES)

static struct stand_ins umads;

int make_umad(uint32_t number, int flags)
{
	uint32_t body[2] = { RNIC_UMAD_OPEN, number };
	int kept = (flags & O_CLOEXEC ? SOCK_CLOEXEC : 0) | (flags & O_NONBLOCK ? SOCK_NONBLOCK : 0);

	return make_stand_in(&umads, kept, RNIC_MSG_UMAD, body, sizeof body);
}

static int ask_umad(int fd, uint32_t what, const void *argument, size_t bytes, uint32_t *told)
{
	uint32_t body[2 + REGISTER2_BYTES / sizeof(uint32_t)] = { what, umads.told[fd] };
	int nic = reach_nic(), error = EIO;

	memcpy(body + 2, argument, bytes);
	if (nic >= 0) {
		error = ask_nic(nic, RNIC_MSG_UMAD, body, 2 * sizeof *body + bytes, -1, told);
		close(nic);
	}
	errno = error;
	return error ? -1 : 0;
}

NEXT(int, ioctl, (int, unsigned long, ...))
EXPORT int our_ioctl(int fd, unsigned long request, ...) __asm__("ioctl");
EXPORT int our_ioctl(int fd, unsigned long request, ...)
{
	va_list rest;
	void *argument;

	va_start(rest, request);
	argument = va_arg(rest, void *);
	va_end(rest);
	if (_IOC_TYPE(request) != MAGIC || !is_stand_in(&umads, fd))
		return next_ioctl() ? next_ioctl()(fd, request, argument) : (errno = ENOSYS, -1);
	switch (request) {
	case ENABLE_PKEY:
		return 0;
	case REGISTER:
		return ask_umad(fd, RNIC_UMAD_REGISTER, argument, REGISTER_BYTES, argument);
	case REGISTER2:
		return ask_umad(fd, RNIC_UMAD_REGISTER2, argument, REGISTER2_BYTES, argument);
	case UNREGISTER:
		return ask_umad(fd, RNIC_UMAD_UNREGISTER, argument, sizeof(uint32_t), NULL);
	default:
		errno = ENOTTY; /* libibumad falls back from newer requests */
		return -1;
	}
}

NEXT(ssize_t, write, (int, const void *, size_t))
EXPORT ssize_t our_write(int fd, const void *data, size_t bytes) __asm__("write");
EXPORT ssize_t our_write(int fd, const void *data, size_t bytes)
{
	if (is_stand_in(&umads, fd)) {
		uint8_t class = bytes > CLASS_AT ? ((const uint8_t *)data)[CLASS_AT] : 0;

		if (bytes < HEADER_BYTES + RMPP_HEADER_BYTES || class == CLASS_LID_ROUTED || class == CLASS_DIRECTED) {
			errno = bytes < HEADER_BYTES + RMPP_HEADER_BYTES ? EINVAL : EPROTONOSUPPORT;
			return -1;
		}
	}
	return next_write() ? next_write()(fd, data, bytes) : (errno = ENOSYS, -1);
}

#endif
