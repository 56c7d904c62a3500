/* Inputs of a tuning run: the shapes, the tuned tables and the device classes. */
#pragma once

#include "cli/tune/tune.h"

#define MF_TUNE_TABLES_MAX  64
#define MF_TUNE_CLASSES_MAX 16

struct mf_tune_input {
    struct mf_table *untuned;
    char paths[MF_TUNE_TABLES_MAX][4096]; /* the run writes to the first table */
    struct mf_table *tuned[MF_TUNE_TABLES_MAX];
    size_t n_tables;
    struct mf_tune_device devices[MF_TUNE_DEVICES_MAX]; /* devices of a private farm */
    size_t n_devices;
    struct mf_device_class classes[MF_TUNE_CLASSES_MAX];
    size_t n_classes;
};
void mf_tune_input_release(struct mf_tune_input *in);

/* Each call returns an exit code. */

/* Splits a colon-separated list of paths. */
int mf_tune_input_name(struct mf_tune_input *in, const char *list);
/* Reads the tables at those paths; a missing file counts as empty. */
int mf_tune_input_tables(struct mf_tune_input *in);
int mf_tune_input_untuned(struct mf_tune_input *in, const char *path);
/* Finds the device classes. With an external farm, these are the requested classes, or else the classes of
 * the farm's workers. With a private farm, these are the classes of its devices. */
int mf_tune_input_classes(struct mf_tune_input *in, const struct mf_tune_options *o, struct mf_cli *cli);

/* Prints the unreadable rows of the table on stderr. */
void mf_tune_print_unreadable(const char *path, const struct mf_table *t);
