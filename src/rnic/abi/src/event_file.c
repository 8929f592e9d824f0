/* The descriptor that a program polls for events. */
#include "event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

int event_file_open(struct event_file *file, int eventfd)
{
	/* /proc shows `data`, which identifies the descriptor (io/own_fd.c). */
	struct epoll_event how = { .events = EPOLLIN, .data.u64 = (uintptr_t)file };
	int watching = -1, error = errno;

	*file = (struct event_file){ .fd.fd = -1, .fired.fd = -1 };
	if (eventfd < 0)
		return error;
	own_fd_take(&file->fired, eventfd, OWN_FD_PRIVATE);
	watching = epoll_create1(EPOLL_CLOEXEC);
	if (watching < 0 || epoll_ctl(watching, EPOLL_CTL_ADD, file->fired.fd, &how)) {
		error = errno;
		if (watching >= 0)
			close(watching);
		own_fd_close(&file->fired);
		return error;
	}
	own_fd_take(&file->fd, watching, OWN_FD_SHARED);
	return 0;
}

void event_file_close(struct event_file *file)
{
	own_fd_close(&file->fd);
	own_fd_close(&file->fired);
}

bool event_file_is_nonblocking(const struct event_file *file)
{
	return fcntl(file->fd.fd, F_GETFL) & O_NONBLOCK;
}
