/* Memory files: what sessions keep their data in, so that another process can map them and they outlive one. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A new sealable memory file of that size, close-on-exec, in huge pages where that can be; mf_memory_seal ends
 * writing to it (no writable mapping may be left). */
int mf_memory_file(const char *name, uint64_t bytes, int *ret_fd);
/* The same without any pages yet, and pages for all of it at once, as mf_memory_file has them. -ENOMEM. */
int mf_memory_file_bare(const char *name, uint64_t bytes, int *ret_fd);
int mf_memory_back(int fd, uint64_t bytes);
int mf_memory_seal(int fd);
/* -EPERM: it is not sealed against shrinking, growing and writing; -EINVAL: it is shorter. */
int mf_memory_check_sealed(int fd, uint64_t bytes);
/* Maps whole pages of the file, shared, at a multiple of a huge page when as large as one. NULL: errno says why. */
void *mf_memory_map(int fd, size_t bytes, int protection, int flags);

/* Bytes of memory that the machine could still give, by /proc/meminfo; UINT64_MAX when it does not say. */
uint64_t mf_memory_available(void);
