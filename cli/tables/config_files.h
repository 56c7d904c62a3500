/* Writes the configuration files of vLLM or SGLang that the farm sends as {consumer, variable, files}. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

#include "cli/support/cli.h"

/* True if the consumer reads such files instead of a CSV table. NULL: false. */
bool mf_has_config_files(const char *consumer);
/* True if the path stays below the folder to which it is appended. */
bool mf_config_path_ok(const char *path);
/* Checks that each file is a text with such a path. Prints its own error message and returns the exit code,
 * or 0. */
int mf_config_files_check(const cJSON *configs);
/* Writes each file below the folder, which is created if needed. Each file is replaced atomically; other
 * files of the folder stay. Refuses a path that would leave the folder. Prints its own error message and
 * returns the exit code, or 0. */
int mf_config_files_write(const char *folder, const cJSON *configs, size_t *ret_n);
/* Prints the environment variable that makes the framework read the folder. */
void mf_config_files_print_use(const char *folder, const cJSON *configs);
/* Prints the reasons of rows left out to standard error, at most a page of them. */
void mf_config_files_print_left_out(const cJSON *configs);
