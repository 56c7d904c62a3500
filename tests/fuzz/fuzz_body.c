/* Fuzzes submissions. The first line of an input holds "json" or "csv", which is the type of the body, and
 * the query. The rest of the input is the body:
 *
 *     csv topk=4&name=nightly
 *     token,model_dim,…
 *
 * Every text of an accepted batch must parse back to the same value. A rejection must be a JSON problem that
 * names the location. */
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "fuzz.h"
#include "server/api/api.h"
#include "server/api/submission.h"

static struct mf_request *request_of(const char *text, size_t size)
{
    struct mf_request *r = mf_request_new();
    MF_MUST(r);
    const char *line_end = memchr(text, '\n', size);
    size_t line = line_end ? (size_t)(line_end - text) : size, body = line_end ? line + 1 : size;
    /* the HTTP server accepts only UTF-8 queries */
    for (size_t i = 0; i < line; i++) {
        if ((unsigned char)text[i] >= 0x80)
            line = i;
    }
    bool json = line >= 4 && memcmp(text, "json", 4) == 0;
    (void)mf_copy(r->content_type, sizeof(r->content_type), json ? "application/json" : "text/csv");
    _cleanup_(mf_freep) char *query = strndup(text, line);
    char *save = NULL;
    MF_MUST(query);
    char *first = strchr(query, ' ');
    for (char *q = first ? strtok_r(first, " &", &save) : NULL; q && r->n_query < MF_REQUEST_QUERY_MAX;
         q = strtok_r(NULL, "&", &save)) {
        char *value = strchr(q, '=');
        r->query[r->n_query++] =
            (struct mf_query_item){strndup(q, strcspn(q, "=")), strdup(value ? value + 1 : "")};
    }
    MF_MUST(mf_buf_add(&r->body, text + body, size - body) == 0);
    return r;
}

static void check_refusal(const struct mf_response *p)
{
    MF_MUST(p->status == 400 || p->status == 413 || p->status == 422);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(p->body.data, p->body.len, p->body.len);
    const char *title;
    MF_MUST(json && mf_json_text(json, "title", &title) == 0 && mf_json_array(json, "errors"));
}

/* Options read back from the stored JSON must print the same JSON. */
static void check_storage(const struct mf_batch_options *o)
{
    struct mf_batch_options again;
    _cleanup_(cJSON_Deletep) cJSON *stored = mf_batch_options_print(o, false);
    _cleanup_(cJSON_Deletep) cJSON *for_units = mf_batch_options_print(o, true);
    MF_MUST(stored && for_units);
    mf_batch_options_read(stored, &again);
    _cleanup_(cJSON_Deletep) cJSON *printed = mf_batch_options_print(&again, false);
    _cleanup_(mf_freep) char *a = mf_json_print(stored), *b = mf_json_print(printed);
    MF_MUST(a && b && strcmp(a, b) == 0);
}

static void check_options(const struct mf_batch_options *o)
{
    char text[MF_ROUTING_TEXT_MAX];
    struct mf_routing again;
    MF_MUST(o->priority >= 0 && o->priority <= 100 && o->topk >= 1 && o->topk <= 64);
    MF_MUST(o->err_ratio >= 0 && o->err_ratio <= 1 && o->fuse_saves >= 0);
    MF_MUST(o->time_cap_ms >= 100 && o->time_cap_ms <= 600000);
    MF_MUST(o->n_classes <= 16 && o->n_no_fuse <= MF_BATCH_NO_FUSE_MAX && o->n_regret <= MF_BATCH_REGRET_MAX);
    mf_routing_print(&o->routing, text);
    MF_MUST(mf_routing_parse(text, &again) == 0);
    check_storage(o);
}

static void check_batch(const struct mf_submission *s)
{
    MF_MUST(s->n_shapes > 0 && s->n_shapes <= MF_SUBMISSION_SHAPES_MAX);
    MF_MUST(s->name[0] && strlen(s->name) <= 200 && strlen(s->body_hash) == 64);
    for (const char *c = s->name; *c; c++)
        MF_MUST((unsigned char)*c >= 0x20 && *c != 0x7f);
    for (size_t i = 0; i < s->n_shapes; i++) {
        char text[MF_SHAPE_TEXT_MAX];
        struct mf_shape again;
        mf_shape_print(&s->shapes[i], text);
        MF_MUST(strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:+/-") ==
                strlen(text));
        MF_MUST(mf_shape_parse(text, &again) == 0 && mf_shape_equal(&again, &s->shapes[i]));
    }
    check_options(&s->options);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mf_request *r = request_of((const char *)data, size);
    int e = mf_api_submit_read(NULL, r);
    MF_MUST((e < 0) == (r->response.status != 0));
    if (e < 0)
        check_refusal(&r->response);
    else
        check_batch(&((const struct mf_submission_work *)r->work)->submission);
    (void)mf_request_free(r);
    return 0;
}
