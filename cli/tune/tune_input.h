/* What a tune starts from: the shapes, the tables that have some of them, and the device classes. */
#pragma once

#include "cli/tune/tune.h"

#define MF_TUNE_TABLES_MAX  64
#define MF_TUNE_CLASSES_MAX 16

struct mf_tune_input {
    struct mf_table *untuned;
    char paths[MF_TUNE_TABLES_MAX][4096]; /* the first is written */
    struct mf_table *tuned[MF_TUNE_TABLES_MAX];
    size_t n_tables;
    struct mf_tune_device devices[MF_TUNE_DEVICES_MAX]; /* of a farm of its own */
    size_t n_devices;
    struct mf_device_class classes[MF_TUNE_CLASSES_MAX];
    size_t n_classes;
};
void mf_tune_input_release(struct mf_tune_input *in);

/* Each gives an exit code. */

/* The paths of a list with colons. */
int mf_tune_input_name(struct mf_tune_input *in, const char *list);
/* The tables at those paths; one that is not there is empty. */
int mf_tune_input_tables(struct mf_tune_input *in);
int mf_tune_input_untuned(struct mf_tune_input *in, const char *path);
/* Of the farm that was named, those asked for or those of its workers; of a farm of its own, those of the devices. */
int mf_tune_input_classes(struct mf_tune_input *in, const struct mf_tune_options *o, struct mf_cli *cli);

/* The rows of the table that no reader takes, on stderr. */
void mf_tune_say_unreadable(const char *path, const struct mf_table *t);
