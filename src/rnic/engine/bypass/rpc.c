#if defined(__linux__)
#define _GNU_SOURCE
#include "bypass/rpc.h"

#include "io/nocancel.h"
#include "state.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

_Static_assert(RPC_BYTES == ATTACH_MAX_MESSAGE, "message size");

static int send_message(int socket, const void *head, size_t head_bytes, const void *body, size_t body_bytes,
			const int *fds, int fd_count)
{
	struct iovec parts[2] = { { (void *)(uintptr_t)head, head_bytes }, { (void *)(uintptr_t)body, body_bytes } };
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int) * RPC_FDS)];
	} control;
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = body_bytes ? 2 : 1 };

	if (fd_count) {
		memset(&control, 0, sizeof control);
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)fd_count);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int) * (size_t)fd_count);
		memcpy(CMSG_DATA(&control.header), fds, sizeof(int) * (size_t)fd_count);
	}
	while (sendmsg(socket, &message, MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			return errno == EPIPE || errno == ECONNRESET ? EIO : errno;
	return 0;
}

void close_fds(struct rpc_reply *reply)
{
	for (int i = 0; i < reply->fd_count; i++)
		close(reply->fds[i]);
	reply->fd_count = 0;
}

static int receive_message(int socket, struct rpc_reply *reply)
{
	uint8_t head[ATTACH_REPLY_HEADER_SIZE];
	struct iovec parts[2] = { { head, sizeof head }, { reply->body, sizeof reply->body } };
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int) * RPC_FDS)];
	} control;
	struct msghdr message = {
		.msg_iov = parts, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control
	};
	ssize_t got;

	reply->fd_count = 0;
	while ((got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0)
		if (errno != EINTR)
			return EIO;
	for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
		if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count && reply->fd_count < RPC_FDS; i++)
			memcpy(&reply->fds[reply->fd_count++], CMSG_DATA(each) + i * sizeof(int), sizeof(int));
	}
	if (got < (ssize_t)sizeof head || message.msg_flags & MSG_CTRUNC) {
		close_fds(reply);
		return got < (ssize_t)sizeof head ? EIO /* the NIC process has closed */ : EMFILE;
	}
	memcpy(&reply->kind, head, 4);
	memcpy(&reply->token, head + 4, 4);
	memcpy(&reply->error, head + 8, 4);
	reply->bytes = (size_t)got - sizeof head;
	return 0;
}

int rpc_call(int socket, uint32_t kind, uint32_t token, const void *body, size_t bytes, const int *fds, int fd_count,
	     struct rpc_reply *reply)
{
	uint32_t head[2] = { kind, token };
	int error, before = nocancel_begin(); /* the callers hold locks */

	reply->error = 0; /* callers that get no reply check for a refusal, too */
	reply->bytes = 0;
	reply->fd_count = 0;
	error = send_message(socket, head, sizeof head, body, bytes, fds, fd_count);
	do {
		if (!error)
			error = receive_message(socket, reply);
		if (!error && (reply->token != token || reply->kind != kind))
			close_fds(reply);
	} while (!error && (reply->token != token || reply->kind != kind));
	nocancel_end(before);
	if (error)
		return error;
	if (reply->error) {
		close_fds(reply);
		return (int)reply->error;
	}
	return 0;
}
#endif
