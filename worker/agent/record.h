/* Records of an append-only file: what a death in the middle of a write leaves is found out.
 *
 *   magic (4)  length u32 LE  CRC-32 of the payload u32 LE  payload */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MF_RECORD_HEADER 12
#define MF_RECORD_MAX    (8u << 20)

/* -errno leaves what is there up to `at` readable once the caller has cut the file to it. */
int mf_record_write(int fd, const char *magic, const void *payload, size_t len, uint64_t at);
/* The record at `at` of a file of that size: 1, and its payload on the heap, ended by a 0 that len does not count; 0: what
 * is readable ends here. */
int mf_record_read(int fd, uint64_t at, uint64_t size, char ret_magic[5], char **ret, size_t *ret_len);
