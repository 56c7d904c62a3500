/* Explains to a user why a database could not be opened. */
#pragma once

#include <stddef.h>

/* Writes an error message for the error r of mf_store_open() or mf_store_open_reader(). It names the file;
 * the function inspects the file again. */
void mf_store_open_error(const char *path, int r, char *why, size_t why_cap);
