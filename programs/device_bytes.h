/* Bytes that the devices have sent, for checks that nothing went by another way. */
#ifndef DEVICE_BYTES_H
#define DEVICE_BYTES_H

#include <dirent.h>
#include <stdio.h>

/* Return a counter of a device, 0 if it has none of that name. */
static inline unsigned long long counter(const char *device, const char *name)
{
	char path[512];
	unsigned long long value = 0;
	FILE *file;

	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/%s", device, name);
	file = fopen(path, "r");
	if (file && fscanf(file, "%llu", &value) != 1)
		value = 0;
	if (file)
		fclose(file);
	return value;
}

/* Return the bytes sent by all devices so far, by sysfs counters, including loopback inside a device. */
static inline unsigned long long sent_bytes(void)
{
	DIR *devices = opendir("/sys/class/infiniband");
	unsigned long long sum = 0;

	for (struct dirent *each; devices && (each = readdir(devices));)
		sum += 4 * counter(each->d_name, "counters/port_xmit_data") +
		       counter(each->d_name, "hw_counters/shm_bytes");
	if (devices)
		closedir(devices);
	return sum;
}

#endif
