/* Creates the configuration files of vLLM or SGLang from the store. */
#pragma once

#include "common/table/triton/triton_key.h"
#include "server/api/export.h"

/* Returns the framework of a consumer. -EINVAL: the consumer reads a CSV table. */
int mf_consumer_framework(enum mf_consumer consumer, enum mf_framework *ret);

/* *ret: an object {consumer, variable, files}: the environment variable that names the folder, and the
 * content of each file by its path below that folder. on_row is called for each row in a file. *ret_left_out:
 * as for mf_export. The caller frees both. -EINVAL: the consumer reads a CSV table. */
int mf_export_configs(struct mf_store *s, const struct mf_export_options *o, cJSON **ret,
                      cJSON **ret_left_out);
