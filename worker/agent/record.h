/* Checksummed records of an append-only file; detects records torn by a crash.
 *
 *   magic (4)  length u32 LE  CRC-32 of the payload u32 LE  payload */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MF_RECORD_HEADER 12
#define MF_RECORD_MAX    (8u << 20)

/* Writes a record at offset `at`. On error, returns -errno; the records before `at` are then intact, and the
 * caller must truncate the file to `at`. */
int mf_record_write(int fd, const char *magic, const void *payload, size_t len, uint64_t at);
/* Reads the record at offset `at` of a file of `size` bytes. Returns 1 if *ret is the payload (malloc),
 * followed by a NUL byte that *ret_len does not count, or 0 if there is no complete record at `at`. */
int mf_record_read(int fd, uint64_t at, uint64_t size, char ret_magic[5], char **ret, size_t *ret_len);
