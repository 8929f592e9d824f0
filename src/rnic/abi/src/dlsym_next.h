/* Find the next function of the same name, for libraries preloaded before libc. Define _GNU_SOURCE first. */
#ifndef RNIC_DLSYM_NEXT_H
#define RNIC_DLSYM_NEXT_H

#include <dlfcn.h>

static void *dlsym_next(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	/* Names kept only for old programs have no default version. */
	if (!found)
		found = dlvsym(RTLD_NEXT, name, "GLIBC_2.2.5");
	if (!found)
		found = dlvsym(RTLD_NEXT, name, "GLIBC_2.17");
	return found;
}

/* Define next_NAME(), which returns the function of this name after this library's, NULL if there is none. */
#define NEXT(type, name, arguments) \
	typedef type(*name##_type) arguments; \
	static name##_type next_##name(void) \
	{ \
		static void *found; \
		void *is = __atomic_load_n(&found, __ATOMIC_RELAXED); \
\
		if (!is) \
			__atomic_store_n(&found, is = dlsym_next(#name), __ATOMIC_RELAXED); \
		return (name##_type)is; \
	}

#endif
