/* The table of batch options and the syntax of those with a form of their own. */
#pragma once

#include "common/moe/batch_options.h"

/* In the order in which the database stores the options. */
const struct mf_batch_option *mf_batch_option_table(size_t *ret_n);
