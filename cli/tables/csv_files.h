/* Reads the tables and configuration files named on the command line. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/base/opts.h"
#include "common/table/table.h"
#include "common/table/triton/triton_file.h"

/* The files in the order of the command line. A configuration file of vLLM or SGLang is in triton[i], and its
 * findings are the problems of tables[i]; for a CSV table, triton[i] is NULL. */
struct mf_csv_files {
    struct mf_table **tables;
    struct mf_triton_file **triton;
    size_t n;
};
void mf_csv_files_release(struct mf_csv_files *f);
/* Initialiser of the option --format for an option table. */
/* clang-format off */
#define MF_CSV_FORMAT_OPTION(format)                                                         \
    {.name = "format", .type = MF_OPT_TEXT, .value = &(format), .argument = "NAME",          \
     .help = "format of the files: csv, vllm or sglang (default: found for each file)"}
/* clang-format on */
/* Reads the files in order. format: csv, vllm or sglang; NULL: found for each file. A file that is not a
 * table becomes an empty table with an error on its first line. A file that cannot be opened is an error.
 * Prints its own error message and returns the exit code, or 0. */
int mf_csv_files_read(char *const *paths, size_t n, const char *format, struct mf_csv_files *ret);
/* Like mf_csv_files_read, but a file that is not a table is an error. */
int mf_csv_files_read_tables(char *const *paths, size_t n, const char *format, struct mf_csv_files *ret);
