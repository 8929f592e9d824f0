/*
 * The descriptor that a program polls for events. An eventfd reports POLLOUT at all times. The kernel's event files report only POLLIN, and so does an epoll descriptor that watches the eventfd; the program gets the epoll descriptor. The NIC signals the eventfd, and the library reads it.
 */
#ifndef RNIC_EVENT_FILE_H
#define RNIC_EVENT_FILE_H

#include <stdbool.h>

#include "io/own_fd.h"

struct event_file {
	struct own_fd fd; /* an ordinary descriptor of the program, which may close it */
	struct own_fd fired; /* the eventfd */
};

/* Open it over an eventfd, which it then owns. Returns 0 or the error number: errno if the eventfd is -1. */
int event_file_open(struct event_file *file, int eventfd);
void event_file_close(struct event_file *file);
/* Return whether calls that find no event return at once: the program has set O_NONBLOCK. */
bool event_file_is_nonblocking(const struct event_file *file);

#endif
