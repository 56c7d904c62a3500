/* Why a database could not be opened, in words of the person who has to do something about it. */
#pragma once

#include <stddef.h>

/* A sentence on what mf_store_open() or mf_store_open_reader() gave r for; looks at the file once more. It names the file. */
void mf_store_refusal(const char *path, int r, char *why, size_t why_cap);
