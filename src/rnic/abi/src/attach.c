/* The connection to the NIC process, and messages over it, for both libraries. */
#define _GNU_SOURCE
#include "attach.h"
#include "rnic.h"

#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

void complain(const char *format, ...)
{
	char line[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	fprintf(stderr, "rnic: %s\n", line);
}

int fail(int error)
{
	errno = error;
	return error;
}

void *fail_null(int error)
{
	errno = error;
	return NULL;
}

static int runtime_path(char *path, size_t bytes)
{
	const char *directory = getenv("RNIC_RUNTIME_DIR"), *base = getenv("XDG_RUNTIME_DIR");
	int length;

	if (directory && *directory)
		length = snprintf(path, bytes, "%s/" RNIC_SOCKET_NAME, directory);
	else if (base && *base)
		length = snprintf(path, bytes, "%s/rnic/" RNIC_SOCKET_NAME, base);
	else
		length = snprintf(path, bytes, "/tmp/rnic-%u/" RNIC_SOCKET_NAME, (unsigned)getuid());
	return length > 0 && (size_t)length < bytes ? 0 : ENAMETOOLONG;
}

static int send_message(int socket, const void *head, size_t head_bytes, const void *body, size_t body_bytes,
			const int *fds, int fd_count)
{
	struct iovec parts[2] = { { (void *)(uintptr_t)head, head_bytes }, { (void *)(uintptr_t)body, body_bytes } };
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int) * FDS_MAX)];
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

void close_fds(struct reply *reply)
{
	for (int i = 0; i < reply->fd_count; i++)
		close(reply->fds[i]);
	reply->fd_count = 0;
}

static int receive_message(int socket, struct reply *reply)
{
	uint8_t head[RNIC_REPLY_HEADER_SIZE];
	struct iovec parts[2] = { { head, sizeof head }, { reply->body, sizeof reply->body } };
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int) * FDS_MAX)];
	} control;
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2, .msg_control = &control,
				  .msg_controllen = sizeof control };
	ssize_t got;

	reply->fd_count = 0;
	while ((got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0)
		if (errno != EINTR)
			return EIO;
	for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
		if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count && reply->fd_count < FDS_MAX; i++)
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

int exchange(int socket, uint32_t kind, uint32_t token, const void *body, size_t bytes, const int *fds,
		    int fd_count, struct reply *reply)
{
	uint32_t head[2] = { kind, token };
	int error = send_message(socket, head, sizeof head, body, bytes, fds, fd_count);

	if (error)
		return error;
	do {
		error = receive_message(socket, reply);
		if (error)
			return error;
		if (reply->token != token || reply->kind != kind)
			close_fds(reply);
	} while (reply->token != token || reply->kind != kind);
	if (reply->error) {
		close_fds(reply);
		return (int)reply->error;
	}
	return 0;
}

void tell(const struct reply *reply)
{
	if (reply->error && reply->bytes)
		complain("%.*s", (int)reply->bytes, (const char *)reply->body);
}

/* Connects and greets; says why it cannot, unless it is to keep quiet about nobody answering. */
static int connect_once(uint32_t *devices, int *pid, bool quiet)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred peer = { 0 };
	socklen_t size = sizeof peer;
	uint32_t hello[3] = { RNIC_ATTACH_MAGIC, RNIC_ATTACH_VERSION, (uint32_t)getpid() };
	struct reply *reply;
	int channel, error = runtime_path(address.sun_path, sizeof address.sun_path);

	if (error) {
		complain("the runtime directory's name is too long for a socket: set RNIC_RUNTIME_DIR to a shorter one");
		errno = error;
		return -1;
	}
	reply = malloc(sizeof *reply);
	if (!reply)
		return -1;
	channel = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (channel < 0) {
		error = errno;
		goto out;
	}
	if (connect(channel, (struct sockaddr *)&address, sizeof address) < 0) {
		error = errno;
		if (!quiet)
			complain("no NIC process answers at %s (%s): start the program with `rnic exec -- PROGRAM`",
				 address.sun_path, strerror(error));
		goto out;
	}
	if (getsockopt(channel, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.uid != geteuid()) {
		error = EPERM;
		complain("the NIC process at %s is user %u's, not yours: set RNIC_RUNTIME_DIR to a directory of your own",
			 address.sun_path, (unsigned)peer.uid);
		goto out;
	}
	error = exchange(channel, RNIC_MSG_HELLO, 1, hello, sizeof hello, NULL, 0, reply);
	if (error) {
		if (reply->error)
			tell(reply);
		else if (!quiet)
			complain("the NIC process at %s closed the connection", address.sun_path);
		goto out;
	}
	if (reply->bytes < RNIC_HELLO_REPLY_SIZE) {
		error = EPROTO;
		goto out;
	}
	if (pid)
		memcpy(pid, reply->body + RNIC_HELLO_REPLY_PID_AT, 4);
	if (devices)
		memcpy(devices, reply->body + RNIC_HELLO_REPLY_DEVICES_AT, 4);
out:
	free(reply);
	if (error) {
		if (channel >= 0)
			close(channel);
		errno = error;
		return -1;
	}
	return channel;
}

/* Whether a name of the environment is meant for the program alone. */
static bool for_program(const char *entry)
{
	static const char *const names[] = { "LD_PRELOAD=", "LD_LIBRARY_PATH=", "RNIC_PATHS=" };

	for (size_t i = 0; i < COUNT(names); i++)
		if (strncmp(entry, names[i], strlen(names[i])) == 0)
			return true;
	return false;
}

/* Starts the NIC process again with the devices that `rnic exec` asked for, which RNIC_AGAIN holds. */
static int start_again(const char *python)
{
	char *arguments[] = { (char *)(uintptr_t)python, "-m", "rnic.cli", "again", NULL };
	size_t count = 0, kept = 0;
	posix_spawn_file_actions_t actions;
	char **inherited;
	int error, status = 0;
	pid_t child;

	while (environ[count])
		count++;
	inherited = calloc(count + 1, sizeof *inherited);
	if (!inherited)
		return ENOMEM;
	for (size_t i = 0; i < count; i++)
		if (!for_program(environ[i]))
			inherited[kept++] = environ[i];
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
	posix_spawn_file_actions_adddup2(&actions, 0, 1); /* the program's output is its own */
	error = posix_spawn(&child, python, &actions, NULL, arguments, inherited);
	posix_spawn_file_actions_destroy(&actions);
	free(inherited);
	if (error)
		return error;
	/* A program that waits for all its children may be faster: then the connection shows how it went. */
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return 0;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : ECONNREFUSED;
}

/* Where the NIC process has ended, it is started again. */
int nic_connect(uint32_t *devices, int *pid)
{
	const char *python = getenv("RNIC_PYTHON");
	bool may_start = python && *python && getenv("RNIC_AGAIN");
	int channel = connect_once(devices, pid, may_start);

	if (channel >= 0 || !may_start || (errno != ENOENT && errno != ECONNREFUSED && errno != EIO))
		return channel;
	start_again(python);
	return connect_once(devices, pid, false);
}
