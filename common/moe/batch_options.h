/* Parses, prints and describes the options of a batch, as defined in their table. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "common/moe/batch_option_table.h"

/* Returns the next option that users can set, in the order of the table. If `o` is NULL, returns the first
 * such option. Returns NULL after the last. */
const struct mf_batch_option *mf_batch_option_next(const struct mf_batch_option *o);
/* Returns NULL if there is no such option. */
const struct mf_batch_option *mf_batch_option_find(const char *name);
/* True if a value of an integer or number option is in range. */
bool mf_batch_option_fits(const struct mf_batch_option *o, double value);
/* Prints the range of an integer or number option: "0 to 100", "0 to below 1". */
#define MF_OPTION_RANGE_MAX 64
void mf_batch_option_range(const struct mf_batch_option *o, char buf[MF_OPTION_RANGE_MAX]);
/* Prints the part of an error message that describes the valid values: "expected an integer from 0 to 100".
 */
#define MF_OPTION_HELP_MAX 512
void mf_batch_option_expected(const struct mf_batch_option *o, char buf[MF_OPTION_HELP_MAX]);
/* Prints the help of an option, a noun phrase with range and default: "priority of the batch, 0 to 100
 * (default: 50)". */
void mf_batch_option_help(const struct mf_batch_option *o, char buf[MF_OPTION_HELP_MAX]);
/* The default, as help shows it. */
const char *mf_batch_option_initial(const struct mf_batch_option *o);
/* Sets the option from its text. Returns -EINVAL if the text is not valid; a list option may then have fewer
 * items than before, and other options are unchanged. */
int mf_batch_option_parse(const struct mf_batch_option *o, const char *text, struct mf_batch_options *ret);

struct mf_batch_options mf_batch_options_default(void);
/* Converts options to JSON. for_units: true: only the options that work units contain; false: all options, as
 * the database stores them. Returns NULL if out of memory. */
cJSON *mf_batch_options_print(const struct mf_batch_options *options, bool for_units);
/* Reads stored options from JSON. Missing and invalid members get their defaults. */
void mf_batch_options_read(const cJSON *json, struct mf_batch_options *ret);
