/* How fast this machine runs programs, for waits that end when another program should be done. */
#ifndef RNIC_ENGINE_CALIBRATE_H
#define RNIC_ENGINE_CALIBRATE_H

#include <stdint.h>

/* Return how many times longer than on any processor a program takes here between two packets: 1, or some ten in an
 * emulator, where answers otherwise come after the wait for them. Measured by peeking at a socket, which keeps its
 * packets. */
uint64_t calibrate_slowdown(int fd);

#endif
