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
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compiler.h"
#include "errors.h"
#include "own_paths.h"
#include "rnic_hw.h"

void log_refusal(const struct rpc_reply *reply)
{
	if (reply->error && reply->bytes)
		log_error("%.*s", (int)reply->bytes, (const char *)reply->body);
}

/* Connect and send HELLO. Print the reason of a failure; with `quiet`, not if no NIC process answers. */
static int connect_once(uint32_t *devices, int *pid, bool quiet)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred peer = { 0 };
	socklen_t size = sizeof peer;
	uint32_t hello[3] = { RNIC_ATTACH_MAGIC, RNIC_ATTACH_VERSION, (uint32_t)getpid() };
	struct rpc_reply *reply;
	int channel, error = runtime_path(address.sun_path, sizeof address.sun_path, RNIC_SOCKET_NAME);

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

/* Return whether an environment variable is meant for the program alone. */
static bool is_for_program(const char *entry)
{
	static const char *const names[] = { "LD_PRELOAD=", "LD_LIBRARY_PATH=", "RNIC_PATHS=" };

	for (size_t i = 0; i < COUNT(names); i++)
		if (strncmp(entry, names[i], strlen(names[i])) == 0)
			return true;
	return false;
}

enum { MAX_SETTINGS = 64, SETTINGS_BYTES = 16384 };

/* The file that `rnic cdi` puts next to the libraries of a container. A line NAME=VALUE sets a variable of the NIC process; ?NAME=VALUE sets it only if the program's environment lacks it. */
struct settings {
	size_t count;
	char *lines[MAX_SETTINGS];
	char text[SETTINGS_BYTES];
};

static int read_settings(struct settings *settings)
{
	char path[PATH_MAX], *rest = settings->text, *line;
	int fd, error = settings_path(path, sizeof path);
	ssize_t bytes;

	if (error)
		return error;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	bytes = read(fd, settings->text, SETTINGS_BYTES - 1);
	error = bytes < 0 ? errno : 0;
	close(fd);
	if (error)
		return error;
	settings->text[bytes] = '\0';
	settings->count = 0;
	while ((line = strsep(&rest, "\n")) && settings->count < MAX_SETTINGS)
		if (strchr(line, '='))
			settings->lines[settings->count++] = line;
	return 0;
}

/* Return the value of a setting, NULL without one. */
static const char *setting_of(const struct settings *settings, const char *name)
{
	size_t length = strlen(name);

	for (size_t i = 0; i < settings->count; i++)
		if (strncmp(settings->lines[i], name, length) == 0 && settings->lines[i][length] == '=')
			return settings->lines[i] + length + 1;
	return NULL;
}

/* Set a variable in an environment of `count` entries, replacing an existing one. Returns the new count. */
static size_t put_variable(char **entries, size_t count, char *line)
{
	bool is_default = *line == '?';
	char *entry = line + is_default;
	size_t name = strcspn(entry, "=") + 1;

	for (size_t i = 0; i < count; i++) {
		if (strncmp(entries[i], entry, name) == 0) {
			if (!is_default)
				entries[i] = entry;
			return count;
		}
	}
	entries[count] = entry;
	return count + 1;
}

/* Start the NIC process: with the devices that `rnic exec` asked for, which RNIC_AGAIN holds, or with `settings`. */
static int start_nic_process(const char *python, const struct settings *settings)
{
	char *arguments[] = { (char *)(uintptr_t)python, "-m", "rnic.cli", "again", NULL };
	size_t count = 0, kept = 0;
	posix_spawn_file_actions_t actions;
	char **inherited;
	int error, status = 0;
	pid_t child;

	while (environ[count])
		count++;
	inherited = calloc(count + MAX_SETTINGS + 1, sizeof *inherited);
	if (!inherited)
		return ENOMEM;
	for (size_t i = 0; i < count; i++)
		if (!is_for_program(environ[i]))
			inherited[kept++] = environ[i];
	for (size_t i = 0; settings && i < settings->count; i++)
		kept = put_variable(inherited, kept, settings->lines[i]);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
	posix_spawn_file_actions_adddup2(&actions, 0, 1); /* stdout is the program's */
	error = posix_spawn(&child, python, &actions, NULL, arguments, inherited);
	posix_spawn_file_actions_destroy(&actions);
	free(inherited);
	if (error)
		return error;
	/* A program that reaps all its children may get the status first. Then only the connection shows whether it started. */
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return 0;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : ECONNREFUSED;
}

/* Connect, and start the NIC process first if none runs. A program that gained privileges at its start (setuid) starts none: its environment is another user's. */
int nic_connect(uint32_t *devices, int *pid)
{
	const char *python = getenv("RNIC_PYTHON");
	struct settings *settings = NULL;
	bool may_start = false;
	int channel, error;

	if (!getauxval(AT_SECURE)) {
		may_start = python && *python && getenv("RNIC_AGAIN");
		settings = may_start ? NULL : malloc(sizeof *settings);
		if (settings && !read_settings(settings)) {
			python = setting_of(settings, "RNIC_PYTHON");
			may_start = python != NULL;
		}
	}
	channel = connect_once(devices, pid, may_start);
	error = errno;
	if (channel < 0 && may_start && (error == ENOENT || error == ECONNREFUSED || error == EIO)) {
		start_nic_process(python, settings);
		channel = connect_once(devices, pid, false);
		error = errno;
	}
	free(settings);
	errno = error;
	return channel;
}
