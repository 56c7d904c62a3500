/* One page of a list of the REST API. */
#pragma once

#include <cjson/cJSON.h>

#include "server/api/cursor.h"

struct mf_list {
    cJSON *items;                  /* array; the caller frees it */
    char next[MF_CURSOR_TEXT_MAX]; /* "" on the last page */
};
