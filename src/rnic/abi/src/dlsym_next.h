/* For libraries that stand in front of libc: the functions behind their own. _GNU_SOURCE wants to be defined. */
#ifndef RNIC_BEHIND_H
#define RNIC_BEHIND_H

#include <dlfcn.h>

static void *behind(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	/* Names that are kept for old programs alone have no default version. */
	if (!found)
		found = dlvsym(RTLD_NEXT, name, "GLIBC_2.2.5");
	if (!found)
		found = dlvsym(RTLD_NEXT, name, "GLIBC_2.17");
	return found;
}

/* next_NAME() calls the function of this name behind this library, and NULL where there is none. */
#define NEXT(type, name, arguments)                                                                                    \
	typedef type(*name##_type) arguments;                                                                          \
	static name##_type next_##name(void)                                                                           \
	{                                                                                                              \
		static void *found;                                                                                    \
		void *is = __atomic_load_n(&found, __ATOMIC_RELAXED);                                                  \
                                                                                                                       \
		if (!is)                                                                                               \
			__atomic_store_n(&found, is = behind(#name), __ATOMIC_RELAXED);                                \
		return (name##_type)is;                                                                                \
	}

#endif
