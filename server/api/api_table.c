#include "server/api/api_table.h"

#include "common/base/durable_file.h"
#include "common/base/text.h"
#include "common/table/triton/triton_key.h"
#include "server/http/problem.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <string.h>
#include <sys/mman.h>

static int read_class(struct mf_request *r, struct mf_table_query *q)
{
    struct mf_device_class *class = &q->class;
    struct mf_export_options *o = &q->options;
    const char *text = mf_request_query(r, "class");
    if (!text)
        return 0;
    if (mf_device_class_parse(text, class) < 0)
        return mf_refuse_at(&r->response, 400, "class", "value",
                            "class: expected a device class such as gfx942/304");
    if (o->filter.gfx && strcmp(o->filter.gfx, class->gfx) != 0)
        return mf_refuse_at(&r->response, 400, "gfx", "conflict",
                            "gfx and class do not match; give only one of them");
    o->filter.gfx = class->gfx;
    o->filter.cu_num = class->cu_num;
    return 0;
}

static int read_layer_model(struct mf_request *r, struct mf_table_query *q)
{
    const char *text = mf_request_query(r, "layer_model");
    char row[MF_SHAPE_TEXT_MAX];
    struct mf_shape shape;
    if (!text)
        return 0;
    mf_format(row, sizeof(row), "1,%s", text);
    if (mf_shape_parse(row, &shape) < 0)
        return mf_refuse_at(
            &r->response, 400, "layer_model", "value",
            "layer_model: expected eleven comma-separated values, a shape's row without its token count");
    mf_shape_print_layer_model(&shape, q->layer_model);
    q->options.filter.layer_model = q->layer_model;
    return 0;
}

int mf_table_query_options(struct mf_request *r, struct mf_table_query *q)
{
    struct mf_export_options *o = &q->options;
    const char *batch = mf_request_query(r, "batch"), *consumer = mf_request_query(r, "consumer");
    *o = (struct mf_export_options){.simulated = mf_request_flag(r, "simulated"),
                                    .provenance = mf_request_flag(r, "provenance")};
    o->filter.gfx = mf_request_query(r, "gfx");
    o->filter.model = mf_request_query(r, "model");
    if (batch && mf_parse_i64(batch, 1, INT64_MAX, &o->filter.batch) < 0)
        return mf_refuse_at(&r->response, 400, "batch", "range",
                            "batch: expected the number of a batch (1 or more)");
    if (consumer && (mf_consumer_parse(consumer, &o->consumer) < 0 || !mf_consumer_has_table(o->consumer)))
        return mf_refuse_at(&r->response, 400, "consumer", "value",
                            "consumer: expected moefarm, aiter, vllm or sglang");
    o->triton = mf_request_query(r, "triton");
    if (o->triton && !mf_triton_version_ok(o->triton))
        return mf_refuse_at(&r->response, 400, "triton", "value", "triton: expected a version such as 3.6.0");
    int e = read_class(r, q);
    return e < 0 ? e : read_layer_model(r, q);
}

static int check_models(struct mf_store *s, const struct mf_export_options *o, struct mf_response *p)
{
    char models[512];
    struct mf_export_filter filter = o->filter;
    filter.consumer = mf_consumer_name(o->consumer);
    if (filter.model)
        return 0;
    int r = mf_store_export_models(s, &filter, o->simulated, models, sizeof(models));
    if (r < 0)
        return mf_refuse_errno(p, r, "list the device models of a class");
    if (!models[0])
        return 0;
    return mf_refuse_at(
        p, 409, "model", "ambiguous",
        "a device class has configs of several device models, but a table holds only one; add model=… (%s)",
        models);
}

int mf_table_query_read(struct mf_request *r, struct mf_store *s, struct mf_table_query *ret)
{
    int e = mf_table_query_options(r, ret);
    return e < 0 ? e : check_models(s, &ret->options, &r->response);
}

/* Opens an unlinked file next to the database, so that a large table does not stay in memory. */
static int open_temporary_file(struct mf_store *s)
{
    _cleanup_(mf_freep) char *path = strdup(mf_store_path(s));
    int fd = path ? open(dirname(path), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        fd = memfd_create("export", MFD_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int mf_table_answer(struct mf_request *r, struct mf_store *s, const char *content_type,
                    const char sha256[MF_SHA256_TEXT_MAX])
{
    struct mf_response *p = &r->response;
    _cleanup_(mf_closep) int fd = open_temporary_file(s);
    int e = fd < 0 ? fd : mf_write_all(fd, p->body.data, p->body.len);
    if (e < 0)
        return mf_refuse_errno(p, e, "write the table to a file");
    mf_buf_release(&p->body);
    p->fd = fd;
    fd = -1;
    p->status = 200;
    p->content_type = content_type;
    mf_format(p->etag, sizeof(p->etag), "\"%s\"", sha256);
    return 0;
}
