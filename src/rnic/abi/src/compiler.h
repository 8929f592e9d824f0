/* What the compiler is told of functions and arguments. */
#ifndef RNIC_COMPILER_H
#define RNIC_COMPILER_H

#define EXPORT __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
