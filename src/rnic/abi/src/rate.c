/* Static rates (IBA 14.2.5.6). */
#include <stddef.h>

#include "compiler.h"

static const struct {
	int code, multiple, mbps;
} rates[] = {
	{ 2, 1, 2500 },	     { 3, 4, 10000 },	 { 4, 12, 30000 },   { 5, 2, 5000 },	 { 6, 8, 20000 },
	{ 7, 16, 40000 },    { 8, 24, 60000 },	 { 9, 32, 80000 },   { 10, 48, 120000 }, { 11, -1, 14062 },
	{ 12, -1, 56250 },   { 13, -1, 112500 }, { 14, -1, 168750 }, { 15, -1, 25781 },	 { 16, -1, 103125 },
	{ 17, -1, 206250 },  { 18, -1, 309375 }, { 19, 11, 28125 },  { 20, 20, 50000 },	 { 21, 160, 400000 },
	{ 22, 240, 600000 },
};

EXPORT int ibv_rate_to_mult(int rate)
{
	for (size_t i = 0; i < COUNT(rates); i++)
		if (rates[i].code == rate)
			return rates[i].multiple;
	return -1;
}

EXPORT int mult_to_ibv_rate(int multiple)
{
	for (size_t i = 0; i < COUNT(rates); i++)
		if (multiple > 0 && rates[i].multiple == multiple)
			return rates[i].code;
	return 0;
}

EXPORT int ibv_rate_to_mbps(int rate)
{
	for (size_t i = 0; i < COUNT(rates); i++)
		if (rates[i].code == rate)
			return rates[i].mbps;
	return -1;
}

EXPORT int mbps_to_ibv_rate(int mbps)
{
	for (size_t i = 0; i < COUNT(rates); i++)
		if (rates[i].mbps == mbps)
			return rates[i].code;
	return 0;
}
