/* Whole files, for the command line. Both print what went wrong and give the exit code, or 0. */
#pragma once

#include "common/base/buf.h"

/* Reads a file, "-" standard input, into buf up to its ceiling. */
int mf_file_read(const char *path, struct mf_buf *buf);
/* Replaces the file whole or not at all: a file beside it, synced, renamed over it. Of a link, the file that it names; a device
 * or a FIFO is written into. "-" is standard output. */
int mf_file_write(const char *path, const char *data, size_t len);
