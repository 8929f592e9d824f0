/* The connection to the NIC process, for both libraries. */
#define _GNU_SOURCE
#include "attach.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compiler.h"
#include "errors.h"
#include "rnic_hw.h"

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

void log_refusal(const struct rpc_reply *reply)
{
	if (reply->error && reply->bytes)
		log_error("%.*s", (int)reply->bytes, (const char *)reply->body);
}

/* Connect and greet. If it fails, say why; with `quiet`, not if no NIC process answers. */
static int connect_once(uint32_t *devices, int *pid, bool quiet)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred peer = { 0 };
	socklen_t size = sizeof peer;
	uint32_t hello[3] = { RNIC_ATTACH_MAGIC, RNIC_ATTACH_VERSION, (uint32_t)getpid() };
	struct rpc_reply *reply;
	int channel, error = runtime_path(address.sun_path, sizeof address.sun_path);

	if (error) {
		log_error(
			"the runtime directory's name is too long for a socket: set RNIC_RUNTIME_DIR to a shorter one");
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
			log_error("no NIC process answers at %s (%s): start the program with `rnic exec -- PROGRAM`",
				  address.sun_path, strerror(error));
		goto out;
	}
	if (getsockopt(channel, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.uid != geteuid()) {
		error = EPERM;
		log_error(
			"the NIC process at %s is user %u's, not yours: set RNIC_RUNTIME_DIR to a directory of your own",
			address.sun_path, (unsigned)peer.uid);
		goto out;
	}
	error = rpc_call(channel, RNIC_MSG_HELLO, 1, hello, sizeof hello, NULL, 0, reply);
	if (error) {
		if (reply->error)
			log_refusal(reply);
		else if (!quiet)
			log_error("the NIC process at %s closed the connection", address.sun_path);
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

/* Whether a variable of the environment is meant for the program alone. */
static bool is_for_program(const char *entry)
{
	static const char *const names[] = { "LD_PRELOAD=", "LD_LIBRARY_PATH=", "RNIC_PATHS=" };

	for (size_t i = 0; i < COUNT(names); i++)
		if (strncmp(entry, names[i], strlen(names[i])) == 0)
			return true;
	return false;
}

/* Restart the NIC process with the devices that `rnic exec` asked for, which RNIC_AGAIN holds. */
static int restart_nic_process(const char *python)
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
		if (!is_for_program(environ[i]))
			inherited[kept++] = environ[i];
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
	posix_spawn_file_actions_adddup2(&actions, 0, 1); /* stdout is the program's */
	error = posix_spawn(&child, python, &actions, NULL, arguments, inherited);
	posix_spawn_file_actions_destroy(&actions);
	free(inherited);
	if (error)
		return error;
	/* A program that reaps all its children may be faster. Then only the connection shows whether it started. */
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return 0;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : ECONNREFUSED;
}

/* Connect, and restart the NIC process first if it has ended. */
int nic_connect(uint32_t *devices, int *pid)
{
	const char *python = getenv("RNIC_PYTHON");
	bool may_start = python && *python && getenv("RNIC_AGAIN");
	int channel = connect_once(devices, pid, may_start);

	if (channel >= 0 || !may_start || (errno != ENOENT && errno != ECONNREFUSED && errno != EIO))
		return channel;
	restart_nic_process(python);
	return connect_once(devices, pid, false);
}
