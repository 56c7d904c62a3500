/* Files of server/page/ that are built into the program. */
#pragma once

#include <stddef.h>

/* Its bytes, NUL-terminated behind *ret_len; NULL when there is none of that name. */
const char *mf_embedded(const char *name, size_t *ret_len);
/* Quoted hash of its content, for ETag. "" when there is none. */
const char *mf_embedded_etag(const char *name);
