/* Parses, prints and describes the options of a batch, from their table. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "common/moe/batch_option_table.h"

/* Iterates over the options of users in the order of the table. NULL starts; NULL after the last. */
const struct mf_batch_option *mf_batch_option_next(const struct mf_batch_option *o);
/* NULL: no such option. */
const struct mf_batch_option *mf_batch_option_find(const char *name);
/* True if a value of an integer or number option is in range. */
bool mf_batch_option_fits(const struct mf_batch_option *o, double value);
/* Range of an integer or number option: "0 to 100", "0 to below 1". */
#define MF_OPTION_RANGE_MAX 64
void mf_batch_option_range(const struct mf_batch_option *o, char buf[MF_OPTION_RANGE_MAX]);
/* What a text of the option must be: "expected an integer from 0 to 100". */
#define MF_OPTION_HELP_MAX 512
void mf_batch_option_expected(const struct mf_batch_option *o, char buf[MF_OPTION_HELP_MAX]);
/* Noun phrase with range and default: "priority of the batch, 0 to 100 (default: 50)". */
void mf_batch_option_help(const struct mf_batch_option *o, char buf[MF_OPTION_HELP_MAX]);
/* The default, as help shows it. */
const char *mf_batch_option_initial(const struct mf_batch_option *o);
/* Sets the option from its text. -EINVAL: not valid; a list may have lost its items, other options are
 * unchanged. */
int mf_batch_option_parse(const struct mf_batch_option *o, const char *text, struct mf_batch_options *ret);

struct mf_batch_options mf_batch_options_default(void);
/* Prints the options as JSON: as the database stores them, or only those of a work unit. NULL if out of
 * memory. */
cJSON *mf_batch_options_print(const struct mf_batch_options *options, bool for_units);
/* Reads stored options. Missing and invalid members get their defaults. */
void mf_batch_options_read(const cJSON *json, struct mf_batch_options *ret);
