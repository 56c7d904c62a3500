/* Optional shared libraries: loaded at their first use, so that programs start without them.
 *
 *     #define CALLS(X) X(curl_, easy_init) X(curl_, easy_reset)
 *     static struct { CALLS(MF_FUNCTION_POINTER) } curl;
 *     static const char *const functions[] = {CALLS(MF_FUNCTION_NAME)};
 *
 *     r = mf_shared_library_load("libcurl.so.4", functions, MF_ARRAY_LEN(functions), &curl);
 *     curl.easy_reset(handle);
 *
 * The headers of the library are needed when this code is compiled. */
#pragma once

#include <stddef.h>

/* A member with the type of the function prefix##name */
#define MF_FUNCTION_POINTER(prefix, name) __typeof__(prefix##name) *name;
#define MF_FUNCTION_NAME(prefix, name)    #prefix #name,

/* Loads `file` by the dynamic linker's rules and writes the addresses of the n functions to `calls`, a struct
 * of function pointers in the same order. The functions may also be those of a library that `file` needs. The
 * library is never unloaded, because it may have started threads. -ENOENT: the library is missing, or it
 * lacks a function; `calls` is unchanged. Thread-safe for different `calls`. */
int mf_shared_library_load(const char *file, const char *const *functions, size_t n, void *calls);
