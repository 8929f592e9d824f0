/* Measure the speed of this machine, to scale waits for other programs. */
#ifndef RNIC_ENGINE_CALIBRATE_H
#define RNIC_ENGINE_CALIBRATE_H

#include <stdint.h>

/* Return the slowdown of this machine: 1 on hardware, about ten in an emulator, where answers would otherwise arrive
 * after the wait for them. Measured by peeking at a socket, which does not consume packets. */
uint64_t calibrate_slowdown(int fd);

#endif
