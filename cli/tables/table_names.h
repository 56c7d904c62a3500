/* Checks kernel names in tuned tables. */
#pragma once

#include <stdbool.h>

#include "common/table/table_check.h"

/* Callback for mf_check_options.name. Returns true if the names of a row are wrong. If a row has a
 * `pipeline`, each step must belong to a family of this build; otherwise the row is foreign. In rows without
 * a `pipeline`, AITER's kernel lists must have both kernel names, and AITER's launcher must accept them.
 * lists is a struct mf_aiter_lists, or NULL for the built-in lists. */
bool mf_table_name_wrong(const struct mf_table_row *row, const void *lists, struct mf_check_name *ret);
