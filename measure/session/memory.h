/* Creates, seals and maps memory files (memfd), which hold session data and can be shared with other
 * processes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Creates a sealable, close-on-exec memory file of `bytes` bytes, in huge pages where available. The caller
 * must unmap all writable mappings before calling mf_memory_seal. */
int mf_memory_file(const char *name, uint64_t bytes, int *ret_fd);
/* mf_memory_file_sparse creates the file without pages. mf_memory_populate allocates all pages, or returns
 * -ENOMEM. */
int mf_memory_file_sparse(const char *name, uint64_t bytes, int *ret_fd);
int mf_memory_populate(int fd, uint64_t bytes);
int mf_memory_seal(int fd);
/* Seals the file against writes except through mappings that exist. */
int mf_memory_seal_for_others(int fd);
/* Returns -EPERM if the file is not sealed against shrinking, growing and writing, or -EINVAL if it is
 * shorter than `bytes`. */
int mf_memory_check_sealed(int fd, uint64_t bytes);
/* Maps whole pages of the file: shared if writable, otherwise private. The address is aligned to a huge page
 * if the mapping is at least that large. Returns NULL on error, with errno set. */
void *mf_memory_map(int fd, size_t bytes, int protection, int flags);

/* Returns MemAvailable of /proc/meminfo in bytes, or UINT64_MAX if it is unknown. */
uint64_t mf_memory_available(void);
