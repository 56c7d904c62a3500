#include "cli/support/export_filters.h"

void mf_export_filters_query(struct mf_buf *path, const struct mf_export_filters *f)
{
    mf_http_add_query(path, "batch", f->batch);
    mf_http_add_query(path, "class", f->class);
    mf_http_add_query(path, "model", f->model);
    mf_http_add_query(path, "gfx", f->gfx);
    mf_http_add_query(path, "layer_model", f->layer_model);
    mf_http_add_query(path, "consumer", f->consumer);
    mf_http_add_query(path, "triton", f->triton);
    mf_http_add_query(path, "simulated", f->simulated ? "1" : NULL);
}
