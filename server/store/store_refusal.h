/* Explains to a user why a database could not be opened. */
#pragma once

#include <stddef.h>

/* Writes an error message for the error r of mf_store_open() or mf_store_open_reader(). Inspects the file
 * again to find the cause. The message names the file. */
void mf_store_open_error(const char *path, int r, char *why, size_t why_cap);
