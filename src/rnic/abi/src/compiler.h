/* Attributes of functions and arguments for the compiler, versions of symbols, and the length of an array. */
#ifndef RNIC_COMPILER_H
#define RNIC_COMPILER_H

#define EXPORT __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))

/* Export the symbol that is declared next as NAME@VERSION. Clang has no attribute for it. */
#if defined(__has_attribute) && __has_attribute(symver)
#define SYMBOL_VERSION(symbol, versioned) __attribute__((symver(versioned)))
#else
#define SYMBOL_VERSION(symbol, versioned) __asm__(".symver " #symbol "," versioned);
#endif

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
