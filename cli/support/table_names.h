/* Checks kernel names in tuned tables. */
#pragma once

#include <stdbool.h>

#include "common/table/table_check.h"

/* Callback for mf_check_options.name. If a row has a `pipeline`, each step must be of a family of this build,
 * or the row is foreign. Otherwise both kernel names must follow AITER's grammar, and AITER's launcher must
 * accept them. */
bool mf_table_name_wrong(const struct mf_table_row *row, struct mf_check_name *ret);
