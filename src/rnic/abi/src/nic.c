/*
 * The NIC process: its socket, messages, window of registers, and memory shared with it.
 *
 * Messages are those of rnic.spec.attach. A connection is one opened context; closing it, in whatever way, destroys
 * everything that the context owned.
 */
#define _GNU_SOURCE
#include "rnic.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGE_MAX = 65536, FDS_MAX = 4 };

struct reply {
	uint32_t kind, token, error;
	uint8_t body[MESSAGE_MAX];
	size_t bytes; /* of the body */
	int fds[FDS_MAX];
	int fd_count;
};

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

static void close_fds(struct reply *reply)
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

/* One message and its answer. The answer's descriptors are the caller's unless an error is returned. */
static int exchange(int socket, uint32_t kind, uint32_t token, const void *body, size_t bytes, const int *fds,
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

static void tell(const struct reply *reply)
{
	if (reply->error && reply->bytes)
		complain("%.*s", (int)reply->bytes, (const char *)reply->body);
}

/* Connects and greets. Returns the socket, or -1 with errno, and says why unless none answering is to be kept quiet. */
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

/* Connects and greets, and where the NIC process has ended, has it started again. Returns the socket, or -1 with errno. */
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

/* The devices as a list that ends in NULL. Returns how many, or -1 with errno. */
int nic_list(int socket, struct rnic_device ***list)
{
	struct reply *reply = malloc(sizeof *reply);
	int error = reply ? exchange(socket, RNIC_MSG_LIST, 2, NULL, 0, NULL, 0, reply) : ENOMEM;
	size_t count = 0;

	if (error)
		goto out;
	count = reply->bytes / RNIC_LIST_RECORD_SIZE;
	*list = calloc(count + 1, sizeof **list);
	if (!*list) {
		error = ENOMEM;
		goto out;
	}
	for (size_t i = 0; i < count; i++) {
		const uint8_t *record = reply->body + i * RNIC_LIST_RECORD_SIZE;
		struct rnic_device *device = calloc(1, sizeof *device);
		struct ibv_device *verbs = &device->verbs;
		const char *digits;
		int index;

		if (!device) {
			while (i-- > 0)
				free((*list)[i]);
			free(*list);
			error = ENOMEM;
			goto out;
		}
		device->references = 1;
		memcpy(device->gid.raw, record + RNIC_LIST_RECORD_GID_AT, 16);
		memcpy(&device->guid, record + RNIC_LIST_RECORD_GUID_AT, 8);
		memcpy(verbs->name, record + RNIC_LIST_RECORD_NAME_AT, 16);
		verbs->name[15] = 0;
		digits = verbs->name + strcspn(verbs->name, "0123456789");
		index = *digits ? atoi(digits) : (int)i;
		verbs->node_type = IBV_NODE_CA;
		verbs->transport_type = IBV_TRANSPORT_IB;
		snprintf(verbs->dev_name, sizeof verbs->dev_name, "uverbs%d", index);
		snprintf(verbs->dev_path, sizeof verbs->dev_path, "/sys/class/infiniband_verbs/uverbs%d", index);
		snprintf(verbs->ibdev_path, sizeof verbs->ibdev_path, "/sys/class/infiniband/%.16s", verbs->name);
		(*list)[i] = device;
	}
out:
	free(reply);
	if (error) {
		errno = error;
		return -1;
	}
	return (int)count;
}

/* A message of an opened context. */
static int ask(struct rnic_context *context, uint32_t kind, const void *body, size_t bytes, const int *fds, int fd_count,
	       struct reply *reply)
{
	int error;

	if (context->dead)
		return EIO;
	pthread_mutex_lock(&context->command_lock);
	error = exchange(context->socket, kind, ++context->token, body, bytes, fds, fd_count, reply);
	pthread_mutex_unlock(&context->command_lock);
	return error;
}

/* A command of the device; its status as an errno. The outbox gets what fits. */
int nic_command(struct rnic_context *context, uint16_t op, uint16_t op_modifier, uint32_t in_modifier,
		const void *inbox, uint32_t inbox_bytes, void *outbox, uint32_t outbox_bytes, uint64_t *out_param)
{
	uint8_t message[RNIC_COMMAND_SIZE + 1024] = { 0 };
	struct reply *reply;
	uint32_t status, bytes;
	int error;

	if (inbox_bytes > sizeof message - RNIC_COMMAND_SIZE)
		return EINVAL;
	reply = malloc(sizeof *reply);
	if (!reply)
		return ENOMEM;
	memcpy(message + RNIC_COMMAND_OP_AT, &op, 2);
	memcpy(message + RNIC_COMMAND_OP_MODIFIER_AT, &op_modifier, 2);
	memcpy(message + RNIC_COMMAND_IN_MODIFIER_AT, &in_modifier, 4);
	memcpy(message + RNIC_COMMAND_INBOX_BYTES_AT, &inbox_bytes, 4);
	if (inbox_bytes)
		memcpy(message + RNIC_COMMAND_SIZE, inbox, inbox_bytes);
	reply->error = 0;
	error = ask(context, RNIC_MSG_COMMAND, message, RNIC_COMMAND_SIZE + inbox_bytes, NULL, 0, reply);
	if (!error && reply->bytes < RNIC_COMMAND_REPLY_SIZE)
		error = EPROTO;
	if (error)
		goto out;
	memcpy(&status, reply->body + RNIC_COMMAND_REPLY_STATUS_AT, 4);
	memcpy(&bytes, reply->body + RNIC_COMMAND_REPLY_OUTBOX_BYTES_AT, 4);
	switch (status) {
	case RNIC_CMD_ST_OK:
		break;
	case RNIC_CMD_ST_BAD_OP:
		error = EOPNOTSUPP;
		break;
	case RNIC_CMD_ST_BAD_SYS_STATE:
		error = ENODEV;
		break;
	case RNIC_CMD_ST_RESOURCE_BUSY:
		error = EBUSY;
		break;
	case RNIC_CMD_ST_EXCEED_LIM:
		error = ENOMEM;
		break;
	case RNIC_CMD_ST_INTERNAL_ERR:
		error = EIO;
		break;
	default:
		error = EINVAL;
	}
	if (error)
		goto out;
	if (out_param)
		memcpy(out_param, reply->body + RNIC_COMMAND_REPLY_OUT_PARAM_AT, 8);
	if (outbox) {
		if (bytes > reply->bytes - RNIC_COMMAND_REPLY_SIZE)
			bytes = (uint32_t)(reply->bytes - RNIC_COMMAND_REPLY_SIZE);
		memset(outbox, 0, outbox_bytes);
		memcpy(outbox, reply->body + RNIC_COMMAND_REPLY_SIZE, bytes < outbox_bytes ? bytes : outbox_bytes);
	}
out:
	free(reply);
	return error;
}

int nic_allocate(struct rnic_context *context, uint32_t kind, uint32_t *number)
{
	uint64_t out = 0;
	int error = nic_command(context, RNIC_CMD_ALLOC_RES, 0, kind, NULL, 0, NULL, 0, &out);

	*number = (uint32_t)out;
	return error;
}

void nic_free(struct rnic_context *context, uint32_t kind, uint32_t number)
{
	nic_command(context, RNIC_CMD_FREE_RES, (uint16_t)kind, number, NULL, 0, NULL, 0, NULL);
}

/* The descriptor that an event queue's vector fires, or -1 with errno. */
int nic_vector(struct rnic_context *context, uint32_t vector)
{
	struct reply *reply = malloc(sizeof *reply);
	int error = reply ? ask(context, RNIC_MSG_VECTOR, &vector, sizeof vector, NULL, 0, reply) : ENOMEM;
	int fd = -1;

	if (!error && reply->fd_count == 1) {
		fd = reply->fds[0];
		/* Programs say themselves whether their reads of it may wait. */
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	} else if (!error) {
		close_fds(reply);
		error = EPROTO;
	}
	free(reply);
	if (error)
		errno = error;
	return fd;
}

/* Whether the NIC process has gone; looked at now and then by who waits for it. */
bool nic_gone(struct rnic_context *context)
{
	struct pollfd poller = { .fd = context->socket, .events = 0 };

	if (context->dead)
		return true;
	if (poll(&poller, 1, 0) == 1 && poller.revents & (POLLHUP | POLLERR)) {
		if (!context->dead)
			complain("NIC process %d has gone: device %s is dead", context->nic_pid,
				 context->verbs.context.device->name);
		context->dead = true;
		return true;
	}
	return false;
}

/* ---- memory shared with the NIC process */

/* The NIC process maps a file as this program has it mapped at base. */
int nic_share(struct rnic_context *context, void *base, size_t bytes, int fd)
{
	uint8_t message[RNIC_SHARE_SIZE] = { 0 };
	uint64_t va = (uintptr_t)base, length = bytes;
	uint32_t writable = 1;
	struct reply *reply = malloc(sizeof *reply);
	int error;

	memcpy(message + RNIC_SHARE_VA_AT, &va, 8);
	memcpy(message + RNIC_SHARE_BYTES_AT, &length, 8);
	memcpy(message + RNIC_SHARE_WRITABLE_AT, &writable, 4);
	error = reply ? ask(context, RNIC_MSG_SHARE, message, sizeof message, &fd, 1, reply) : ENOMEM;
	free(reply);
	return error;
}

/* ---- the window */

/* Tell the NIC that a doorbell register of this block was stored to. The fence stands between the store and the
 * look at "asleep": the NIC sets that, fences, and looks for stores once more before it sleeps. */
void nic_ring(struct rnic_context *context, uint32_t block)
{
	atomic_store_explicit(&context->rung[block], 1, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(context->asleep, memory_order_relaxed)) {
		uint64_t one = 1;

		while (write(context->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
			;
	}
}

static int map_window(struct rnic_context *context, const struct reply *reply)
{
	uint64_t bytes, rung, blocks;
	uint32_t count, block_bytes;
	uint32_t magic, version;

	if (reply->bytes < RNIC_OPEN_REPLY_SIZE || reply->fd_count != 2)
		return EPROTO;
	memcpy(&count, reply->body + RNIC_OPEN_REPLY_BLOCKS_AT, 4);
	memcpy(&block_bytes, reply->body + RNIC_OPEN_REPLY_BLOCK_BYTES_AT, 4);
	memcpy(&bytes, reply->body + RNIC_OPEN_REPLY_WINDOW_BYTES_AT, 8);
	memcpy(&rung, reply->body + RNIC_OPEN_REPLY_RUNG_OFFSET_AT, 8);
	memcpy(&blocks, reply->body + RNIC_OPEN_REPLY_BLOCKS_OFFSET_AT, 8);
	if (block_bytes != RNIC_REG_BLOCK_BYTES || rung + count > bytes || blocks + (uint64_t)count * block_bytes > bytes)
		return EPROTO;
	context->window = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, reply->fds[0], 0);
	if (context->window == MAP_FAILED) {
		context->window = NULL;
		return errno;
	}
	context->window_bytes = bytes;
	memcpy(&magic, context->window + RNIC_WINDOW_MAGIC_AT, 4);
	memcpy(&version, context->window + RNIC_WINDOW_VERSION_AT, 4);
	if (magic != RNIC_ATTACH_MAGIC || version != RNIC_ATTACH_VERSION)
		return EPROTO;
	context->rung = (_Atomic uint8_t *)(context->window + rung);
	context->blocks = context->window + blocks;
	context->asleep = (_Atomic uint32_t *)(void *)(context->window + RNIC_WINDOW_ASLEEP_AT);
	return 0;
}

/* Opens a device on a connection of its own. */
int nic_open(struct rnic_context *context, const char *name)
{
	uint8_t message[RNIC_OPEN_SIZE] = { 0 };
	struct reply *reply = malloc(sizeof *reply);
	uint32_t copier = 0, mode = RNIC_DMA_PROC_MEM, page = (uint32_t)sysconf(_SC_PAGESIZE);
	const char *forced = getenv("RNIC_DMA"); /* "mem" or "copy": the one way, or the other */
	int fd = -1, error;

	if (!reply)
		return ENOMEM;
	reply->error = 0;
	context->socket = nic_connect(NULL, &context->nic_pid);
	if (context->socket < 0) {
		error = errno;
		free(reply);
		return error;
	}
	memcpy(message + RNIC_OPEN_NAME_AT, name, strnlen(name, RNIC_OPEN_NAME_BYTES - 1));
	memcpy(message + RNIC_OPEN_PAGE_AT, &page, 4);
	if (!forced || strcmp(forced, "copy") != 0) {
		fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
		error = fd < 0 ? errno : ask(context, RNIC_MSG_OPEN, message, sizeof message, &fd, 1, reply);
		if (fd >= 0)
			close(fd);
		else if (forced)
			complain("/proc/self/mem cannot be opened (%s): unset RNIC_DMA, so that a thread copies instead",
				 strerror(error));
	} else {
		error = EACCES;
	}
	/* Not dumpable, yama, seccomp, no /proc: then a thread of this program copies. */
	if ((error == EACCES || error == EPERM || error == ENOENT) && (!forced || strcmp(forced, "mem") != 0)) {
		reply->error = 0;
		mode = RNIC_DMA_COPIER;
		memcpy(message + RNIC_OPEN_MODE_AT, &mode, 4);
		error = copier_start(context, &fd, &copier);
		if (!error) {
			memcpy(message + RNIC_OPEN_COPIER_AT, &copier, 4);
			error = ask(context, RNIC_MSG_OPEN, message, sizeof message, &fd, 1, reply);
			close(fd);
		}
	}
	if (error) {
		tell(reply);
		goto out;
	}
	error = map_window(context, reply);
	if (error) {
		close_fds(reply);
		goto out;
	}
	close(reply->fds[0]);
	context->wake_fd = reply->fds[1];
out:
	free(reply);
	if (error)
		nic_close(context);
	return error;
}

void nic_close(struct rnic_context *context)
{
	if (context->socket >= 0)
		close(context->socket);
	context->socket = -1;
	copier_stop(context);
	if (context->wake_fd >= 0)
		close(context->wake_fd);
	context->wake_fd = -1;
	if (context->window)
		munmap(context->window, context->window_bytes);
	context->window = NULL;
}
