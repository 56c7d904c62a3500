/* SHA-256 as hex, what other tools print too (sha256sum). Thread-safe. */
#pragma once

#include <stddef.h>

#define MF_SHA256_TEXT_MAX 65

void mf_sha256_print(const void *data, size_t len, char text[MF_SHA256_TEXT_MAX]);
