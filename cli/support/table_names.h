/* Kernel names in tables: does anybody know them? */
#pragma once

#include <stdbool.h>

#include "common/table/table_check.h"

/* For mf_check_options.name. A row with a `pipeline` is libfmoe's: each of its steps has to be of a family of this build, or is
 * foreign. Another row is AITER's, whose two names have to be of its grammar, and such that its launcher does not throw at
 * them. */
bool mf_table_name_wrong(const struct mf_table_row *row, struct mf_check_name *ret);
