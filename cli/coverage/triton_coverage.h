/* Finds which configuration files of vLLM or SGLang a layer reads, and the entry that serves each token
 * count. Explains for every other file why the layer never reads it. */
#pragma once

#include "common/base/buf.h"
#include "common/table/model.h"
#include "common/table/triton/triton_file.h"

#define MF_TRITON_COVERAGE_TOKENS 32768 /* token counts above this one are not replayed */

struct mf_triton_query {
    struct mf_triton_file *const *files; /* none is NULL */
    size_t n_files;
    enum mf_framework framework; /* files of the other framework are never read */
    const struct mf_model *model;
    struct mf_model_split split;
    struct mf_shape layer; /* its token count is ignored */
    const char *device;    /* as the driver reports it, or as in a file's name */
};

/* Consecutive token counts that one entry serves. */
struct mf_triton_span {
    int64_t first, last;
    const struct mf_triton_entry *entry;
};

/* One file and whether the layer reads it. */
struct mf_triton_use {
    const struct mf_triton_file *file;
    unsigned
        differs; /* parts in which the file's key differs from the layer's; 0: the layer reads the file */
    bool other_framework, misspelt; /* then the layer never reads the file */
    /* a split of the model that reads the file; tp 0: none is known */
    struct mf_model_split read_with;
};

struct mf_triton_coverage {
    struct mf_triton_key key;
    struct mf_triton_use *uses; /* in the order of the files */
    size_t n_uses;
    const struct mf_triton_use *up, *down; /* the files that serve the layer; NULL: none. vLLM: up only */
    struct mf_triton_span *spans;          /* of `up` */
    size_t n_spans;
};
#define MF_TRITON_COVERAGE_INIT ((struct mf_triton_coverage){0})
void mf_triton_coverage_release(struct mf_triton_coverage *c);

/* The files must outlive *ret. -ENOTSUP, with `why`: the framework reads no file for the layer. -ENOMEM. */
int mf_triton_coverage_find(const struct mf_triton_query *q, struct mf_triton_coverage *ret,
                            char why[MF_REASON_MAX]);
/* Prints at most `top` files that the layer never reads, those of its device first; 0: all. */
void mf_triton_coverage_print(const struct mf_triton_query *q, const struct mf_triton_coverage *c,
                              int64_t top, struct mf_buf *out);
cJSON *mf_triton_coverage_json(const struct mf_triton_query *q, const struct mf_triton_coverage *c);
