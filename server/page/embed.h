/* Files of server/page/, embedded in moefarmd at build time. */
#pragma once

#include <stddef.h>

/* Returns the contents of a file, with a NUL byte after *ret_len bytes; NULL if there is no such file. */
const char *mf_embedded(const char *name, size_t *ret_len);
/* Returns the ETag of a file: a quoted hash of the contents, or "" if there is no such file. */
const char *mf_embedded_etag(const char *name);
