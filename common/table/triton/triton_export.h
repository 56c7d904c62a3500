/* Creates the configuration files of vLLM or SGLang from tuned rows.
 *
 * A row is a shape on a device with the name of the fastest step. Rows whose shapes have the same file name
 * share a file; its entries are sorted by token count. A row is left out, with a reason, if
 *   - the framework's own choice (step `default`) is the fastest,
 *   - the framework has no file for the shape, or could not launch the step,
 *   - the file belongs to another layer model, because names contain neither hidden size nor topk nor
 *     activation: the first row decides,
 *   - SGLang's folder would need the version of Triton, which is unknown. */
#pragma once

#include <stddef.h>

#include "common/table/triton/triton_file.h"

struct mf_triton_row {
    struct mf_shape shape;
    const char *model;   /* device, as the driver reports it */
    const char *step;    /* name of the step for the whole layer */
    const char *version; /* of Triton; "" if unknown */
    double us;
};

struct mf_triton_export_file {
    char path[MF_TRITON_NAME_MAX]; /* below the folder of mf_framework_variable */
    char *content;
};

struct mf_triton_export {
    struct mf_triton_export_file *files; /* in the order of their first rows */
    size_t n_files;
};
#define MF_TRITON_EXPORT_INIT ((struct mf_triton_export){0})
void mf_triton_export_release(struct mf_triton_export *x);

/* Called for each row that is left out. A negative return value ends the export. */
typedef int (*mf_triton_left_out_fn)(const struct mf_triton_row *row, const char *reason, void *data);

/* -ENOMEM, or the error of `left_out`. */
int mf_triton_export(enum mf_framework framework, const struct mf_triton_row *rows, size_t n,
                     mf_triton_left_out_fn left_out, void *data, struct mf_triton_export *ret);
