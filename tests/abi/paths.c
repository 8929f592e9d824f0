/*
 * Calls every function that librnicpaths.so turns, on the path of its argument, and prints what each found: "NAME text",
 * or "NAME -" and the errno where it found nothing. Those for old programs alone are looked up by name.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static void say(const char *name, int good, const char *text)
{
	if (good)
		printf("%s %s\n", name, text);
	else
		printf("%s - %d\n", name, errno);
}

static void say_file(const char *name, int file)
{
	char text[64] = "";
	ssize_t got = file < 0 ? -1 : read(file, text, sizeof text - 1);

	if (got > 0)
		text[strcspn(text, "\n")] = 0;
	say(name, got > 0, text);
	if (file >= 0)
		close(file);
}

static void say_stream(const char *name, FILE *file)
{
	char text[64] = "";
	int good = file && fgets(text, sizeof text, file);

	text[strcspn(text, "\n")] = 0;
	say(name, good, text);
	if (file)
		fclose(file);
}

static void say_size(const char *name, int result, const struct stat *found)
{
	char text[32];

	snprintf(text, sizeof text, "%lld", (long long)found->st_size);
	say(name, result == 0, text);
}

static void say_glob(const char *name, int result, glob_t *found)
{
	say(name, result == 0 && found->gl_pathc == 1, result == 0 && found->gl_pathc ? found->gl_pathv[0] : "");
	if (result == 0)
		globfree(found);
}

static void *old(const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);

	return found ? found : dlvsym(RTLD_DEFAULT, name, "GLIBC_2.2.5");
}

#ifdef __SANITIZE_ADDRESS__
#define OFFSET 0 /* it reads the names that are not there */
#else
#define OFFSET 2
#endif
#define OLD_OPEN(name, ...) ((int (*)())old(name))(__VA_ARGS__)

/* FILE is a text file in DIRECTORY, LINK a link there, PATTERN matches DIRECTORY alone. */
int main(int argc, char **argv)
{
	const char *file = argv[1], *directory = argv[2], *to = argv[3], *pattern = argv[4];
	char text[PATH_MAX] = "", *real;
	struct statx wide;
	struct stat found;
	struct dirent **list;
	glob_t globbed = { 0 };
	DIR *opened;
	FILE *again;
	int result;

	if (argc != 5)
		return 2;
	say_file("open", open(file, O_RDONLY));
	say_file("open64", open64(file, O_RDONLY));
	say_file("openat", openat(AT_FDCWD, file, O_RDONLY));
	say_file("openat64", openat64(AT_FDCWD, file, O_RDONLY));
	say_file("__open_2", OLD_OPEN("__open_2", file, O_RDONLY));
	say_file("__open64_2", OLD_OPEN("__open64_2", file, O_RDONLY));
	say_file("__openat_2", OLD_OPEN("__openat_2", AT_FDCWD, file, O_RDONLY));
	say_file("__openat64_2", OLD_OPEN("__openat64_2", AT_FDCWD, file, O_RDONLY));
	say_stream("fopen", fopen(file, "r"));
	say_stream("fopen64", fopen64(file, "r"));
	again = fopen("/dev/null", "r");
	say_stream("freopen", freopen(file, "r", again));
	again = fopen("/dev/null", "r");
	say_stream("freopen64", freopen64(file, "r", again));
	opened = opendir(directory);
	say("opendir", opened != NULL, "there");
	if (opened)
		closedir(opened);
	say("scandir", (result = scandir(directory, &list, NULL, alphasort)) > 0, "there");
	say("scandir64", scandir64(directory, (struct dirent64 ***)&list, NULL, alphasort64) > 0, "there");
	say_size("stat", stat(file, &found), &found);
	say_size("stat64", stat64(file, (struct stat64 *)&found), &found);
	say_size("lstat", lstat(file, &found), &found);
	say_size("lstat64", lstat64(file, (struct stat64 *)&found), &found);
	say_size("fstatat", fstatat(AT_FDCWD, file, &found, 0), &found);
	say_size("fstatat64", fstatat64(AT_FDCWD, file, (struct stat64 *)&found, 0), &found);
	say_size("__xstat", OLD_OPEN("__xstat", 1, file, &found), &found);
	say_size("__xstat64", OLD_OPEN("__xstat64", 1, file, &found), &found);
	say_size("__lxstat", OLD_OPEN("__lxstat", 1, file, &found), &found);
	say_size("__lxstat64", OLD_OPEN("__lxstat64", 1, file, &found), &found);
	say_size("__fxstatat", OLD_OPEN("__fxstatat", 1, AT_FDCWD, file, &found, 0), &found);
	say_size("__fxstatat64", OLD_OPEN("__fxstatat64", 1, AT_FDCWD, file, &found, 0), &found);
	result = statx(AT_FDCWD, file, 0, STATX_SIZE, &wide);
	found.st_size = (off_t)wide.stx_size;
	say_size("statx", result, &found);
	say("access", access(file, R_OK) == 0, "there");
	say("eaccess", eaccess(file, R_OK) == 0, "there");
	say("euidaccess", euidaccess(file, R_OK) == 0, "there");
	say("faccessat", faccessat(AT_FDCWD, file, R_OK, 0) == 0, "there");
	say("getxattr", getxattr(file, "user.none", text, sizeof text) < 0 && errno != ENOENT, "there");
	say("lgetxattr", lgetxattr(file, "user.none", text, sizeof text) < 0 && errno != ENOENT, "there");
	say("listxattr", listxattr(file, text, sizeof text) >= 0, "there");
	say("llistxattr", llistxattr(file, text, sizeof text) >= 0, "there");
	memset(text, 0, sizeof text);
	say("readlink", readlink(to, text, sizeof text - 1) > 0, text);
	memset(text, 0, sizeof text);
	say("readlinkat", readlinkat(AT_FDCWD, to, text, sizeof text - 1) > 0, text);
	memset(text, 0, sizeof text);
	say("__readlink_chk", OLD_OPEN("__readlink_chk", to, text, sizeof text - 1, sizeof text) > 0, text);
	memset(text, 0, sizeof text);
	say("__readlinkat_chk", OLD_OPEN("__readlinkat_chk", AT_FDCWD, to, text, sizeof text - 1, sizeof text) > 0,
	    text);
	real = realpath(to, NULL);
	say("realpath", real != NULL, real);
	real = ((char *(*)())old("__realpath_chk"))(to, text, sizeof text);
	say("__realpath_chk", real != NULL, real);
	real = canonicalize_file_name(to);
	say("canonicalize_file_name", real != NULL, real);
	say_glob("glob", glob(pattern, 0, NULL, &globbed), &globbed);
	say_glob("glob64", glob64(pattern, 0, NULL, (glob64_t *)&globbed), &globbed);
	globbed = (glob_t){ .gl_offs = OFFSET };
	result = glob("/dev/nul?", OFFSET ? GLOB_DOOFFS : 0, NULL, &globbed);
	result = glob(pattern, (OFFSET ? GLOB_DOOFFS : 0) | GLOB_APPEND | GLOB_NOCHECK, NULL, &globbed);
	say("glob_append", result == 0 && globbed.gl_pathc == 2, globbed.gl_pathv[OFFSET + 1]);
	say("chdir", chdir(directory) == 0, "there");
	return 0;
}
