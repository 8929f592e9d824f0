/* How fast programs are on this machine, for waits that end when somebody else should be done. */
#ifndef RNIC_ENGINE_CALIBRATE_H
#define RNIC_ENGINE_CALIBRATE_H

#include <stdint.h>

/* How many times longer than elsewhere what a program does between two packets takes here: 1 on any processor, some ten in
 * an emulator, where an answer otherwise comes after the time that was left for it. What a look at a socket takes tells;
 * packets that wait there stay. */
uint64_t calibrate_slowdown(int fd);

#endif
