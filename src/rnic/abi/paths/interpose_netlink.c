/*
 * A NETLINK_RDMA socket for programs with device paths of `rnic exec`, so that iproute2's `rdma` shows the devices.
 *
 * It is one end of a pair of sockets; the NIC process has the other and answers what is sent. Netlink messages are
 * datagrams on both, so that sending and receiving pass through. Only addresses are netlink's: bind takes any,
 * getsockname and the sender of a message say what a kernel would.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/netlink.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "compiler.h"
#include "dlsym_next.h"
#include "nic_process.h"
#include "own_paths.h"
#include "rnic_hw.h"

#ifdef __GLIBC__

enum { ANSWER_S = 60 /* it may be starting, on a machine with much to do */ };

static struct stand_ins netlinks;

bool is_stand_in(struct stand_ins *all, int fd)
{
	struct stat found;
	int error = errno;
	uint64_t inode = fd >= 0 && fd < STAND_INS ? atomic_load_explicit(&all->inodes[fd], memory_order_relaxed) : 0;
	bool same = inode && !fstat(fd, &found) && S_ISSOCK(found.st_mode) && found.st_ino == inode;

	errno = error;
	return same;
}

static bool is_netlink(int fd)
{
	return is_stand_in(&netlinks, fd);
}

/* ---- the NIC process (rnic.spec.attach) */

static int connect_to_nic(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval limit = { .tv_sec = ANSWER_S };
	int fd;

	if (runtime_path(address.sun_path, sizeof address.sun_path, RNIC_SOCKET_NAME))
		return -1;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* for connect, too */
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

int ask_nic(int nic, uint32_t kind, const void *body, size_t bytes, int fd, uint32_t *told)
{
	uint32_t header[2] = { kind, 1 }, answer[3] = { 0, 0, EPROTO }, rest[64] = { 0 };
	struct iovec parts[2] = { { header, sizeof header }, { (void *)(uintptr_t)body, bytes } };
	char control[CMSG_SPACE(sizeof fd)] = { 0 };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

	if (fd >= 0) {
		struct cmsghdr *passed;

		message.msg_control = control;
		message.msg_controllen = sizeof control;
		passed = CMSG_FIRSTHDR(&message);
		passed->cmsg_level = SOL_SOCKET;
		passed->cmsg_type = SCM_RIGHTS;
		passed->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(passed), &fd, sizeof fd);
	}
	if (sendmsg(nic, &message, MSG_NOSIGNAL) < 0)
		return EIO;
	message = (struct msghdr){ .msg_iov = (struct iovec[2]){ { answer, sizeof answer }, { rest, sizeof rest } },
				   .msg_iovlen = 2 };
	if (recvmsg(nic, &message, 0) < (ssize_t)sizeof answer)
		return EIO;
	if (told)
		*told = rest[0];
	return (int)answer[2];
}

int reach_nic(void)
{
	uint32_t hello[3] = { RNIC_ATTACH_MAGIC, RNIC_ATTACH_VERSION, (uint32_t)getpid() };
	int nic = connect_to_nic();

	if (nic >= 0 && ask_nic(nic, RNIC_MSG_HELLO, hello, sizeof hello, -1, NULL)) {
		close(nic);
		return -1;
	}
	return nic;
}

void await_nic_process(void)
{
	int nic = reach_nic();

	if (nic >= 0)
		close(nic);
}

int make_stand_in(struct stand_ins *all, int flags, uint32_t kind, const void *body, size_t bytes)
{
	int pair[2], nic, error;
	struct stat found;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | flags, 0, pair))
		return -1;
	nic = pair[0] >= STAND_INS || fstat(pair[0], &found) ? -1 : reach_nic();
	error = nic < 0 ? EIO : ask_nic(nic, kind, body, bytes, pair[1], &all->told[pair[0]]);
	if (nic >= 0)
		close(nic);
	close(pair[1]);
	if (error) {
		close(pair[0]);
		errno = error;
		return -1;
	}
	atomic_store(&all->inodes[pair[0]], (uint64_t)found.st_ino);
	return pair[0];
}

static int make_socket(int type)
{
	const char *names = getenv("RNIC_DEVICE");

	return make_stand_in(&netlinks, type & (SOCK_CLOEXEC | SOCK_NONBLOCK), RNIC_MSG_NETLINK, names ? names : "",
			     names ? strlen(names) : 0);
}

/* ---- the program's calls */

NEXT(int, socket, (int, int, int))
EXPORT int socket(int family, int type, int protocol)
{
	int made;

	if (family == AF_NETLINK && protocol == NETLINK_RDMA && getenv("RNIC_PATHS")) {
		made = make_socket(type);
		if (made >= 0)
			return made;
	}
	return next_socket() ? next_socket()(family, type, protocol) : (errno = ENOSYS, -1);
}

NEXT(int, bind, (int, const struct sockaddr *, socklen_t))
EXPORT int bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
	if (is_netlink(fd))
		return 0;
	return next_bind() ? next_bind()(fd, address, bytes) : (errno = ENOSYS, -1);
}

static void put_address(struct sockaddr *address, socklen_t *bytes, uint32_t port)
{
	struct sockaddr_nl own = { .nl_family = AF_NETLINK, .nl_pid = port };

	if (!bytes)
		return;
	if (address)
		memcpy(address, &own, *bytes < sizeof own ? *bytes : sizeof own);
	*bytes = sizeof own;
}

NEXT(int, getsockname, (int, struct sockaddr *, socklen_t *))
EXPORT int getsockname(int fd, struct sockaddr *address, socklen_t *bytes)
{
	if (is_netlink(fd)) {
		put_address(address, bytes, (uint32_t)getpid());
		return 0;
	}
	return next_getsockname() ? next_getsockname()(fd, address, bytes) : (errno = ENOSYS, -1);
}

NEXT(ssize_t, recvmsg, (int, struct msghdr *, int))
EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	bool netlink = is_netlink(fd);
	socklen_t room = message ? message->msg_namelen : 0;
	ssize_t got = next_recvmsg() ? next_recvmsg()(fd, message, flags) : (errno = ENOSYS, -1);

	if (netlink && got >= 0 && message->msg_name) { /* from port 0, the kernel */
		put_address(message->msg_name, &room, 0);
		message->msg_namelen = room;
	}
	return got;
}

NEXT(ssize_t, recvfrom, (int, void *, size_t, int, struct sockaddr *, socklen_t *))
EXPORT ssize_t recvfrom(int fd, void *data, size_t size, int flags, struct sockaddr *from, socklen_t *bytes)
{
	bool netlink = is_netlink(fd);
	socklen_t room = from && bytes ? *bytes : 0;
	ssize_t got = next_recvfrom() ? next_recvfrom()(fd, data, size, flags, from, bytes) : (errno = ENOSYS, -1);

	if (netlink && got >= 0 && from && bytes) {
		*bytes = room;
		put_address(from, bytes, 0);
	}
	return got;
}

NEXT(int, setsockopt, (int, int, int, const void *, socklen_t))
EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
	if (level == SOL_NETLINK && is_netlink(fd))
		return 0;
	return next_setsockopt() ? next_setsockopt()(fd, level, name, value, bytes) : (errno = ENOSYS, -1);
}

#endif
