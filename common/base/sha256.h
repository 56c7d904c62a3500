/* SHA-256 as hex, in the format of sha256sum. Thread-safe. */
#pragma once

#include <stddef.h>

#define MF_SHA256_TEXT_MAX 65

void mf_sha256_print(const void *data, size_t len, char text[MF_SHA256_TEXT_MAX]);
