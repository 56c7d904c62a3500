/* Names of kernel families. Tuned tables, databases and scripts of earlier versions contain the old names of
 * renamed families. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns the current name of a renamed family, otherwise `name`. */
const char *mf_family_current_name(const char *name);
/* Returns the name that the family had in earlier versions, or NULL. */
const char *mf_family_old_name(const char *name);
/* True if a comma-separated list of families contains the name, or its current or old form. A NULL list
 * contains all names. */
bool mf_family_is_listed(const char *list, const char *name);
