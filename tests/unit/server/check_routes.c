#include "server/api/routes.h"
#include "server/api/submission.h"
#include "server/http/metrics.h"
#include "support/farm/http_client.h"
#include "support/farm/http_harness.h"
#include "support/mf_check.h"

#include "common/base/json.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *method, *path, *route; /* route: NULL if no route matches */
    int64_t id;
    const char *allow, *name; /* name: NULL if no name is expected */
} lookups[] = {
    {"GET", "/", "/", 0, "", NULL},
    {"GET", "/api/v1/batches/7", "/api/v1/batches/{id}", 7, "", NULL},
    {"HEAD", "/api/v1/batches/7", "/api/v1/batches/{id}", 7, "", NULL},
    {"GET", "/api/v1/batches/9223372036854775807/tasks", "/api/v1/batches/{id}/tasks", INT64_MAX, "", NULL},
    {"POST", "/api/v1/batches/7/cancel", "/api/v1/batches/{id}/cancel", 7, "", NULL},
    {"DELETE", "/api/v1/batches", NULL, 0, "POST, GET, HEAD", NULL},
    {"GET", "/api/v1/batches/7/cancel", NULL, 0, "POST", NULL},
    {"get", "/healthz", NULL, 0, "GET, HEAD", NULL}, /* methods are case-sensitive */
    {"GET", "/api/v1/batches/", NULL, 0, "", NULL},
    {"GET", "/api/v1/batches/0", NULL, 0, "", NULL},
    {"GET", "/api/v1/batches/007", NULL, 0, "", NULL},
    {"GET", "/api/v1/batches/-7", NULL, 0, "", NULL},
    {"GET", "/api/v1/batches/9223372036854775808", NULL, 0, "", NULL},
    {"GET", "/api/v1/batches/7/", NULL, 0, "", NULL},
    {"GET", "/api/v1/batches/7x", NULL, 0, "", NULL},
    {"GET", "/page/../schema.sql", NULL, 0, "", NULL},
    {"GET", "", NULL, 0, "", NULL},
    {"GET", "/api/v1/channels/stable", "/api/v1/channels/{name}", 0, "", "stable"},
    {"POST", "/api/v1/channels/a.b_c-1/stage", "/api/v1/channels/{name}/stage", 0, "", "a.b_c-1"},
    {"GET", "/api/v1/channels/", NULL, 0, "", NULL},
    {"GET", "/api/v1/channels/a%20b", NULL, 0, "", NULL},
    {"GET", "/api/v1/channels/../releases", NULL, 0, "", NULL},
    {"GET", "/api/v1/channels/0123456789012345678901234567890123456789012345678901234567890123", NULL, 0, "",
     NULL},
};

MF_TEST(test_find, .rows = MF_ARRAY_LEN(lookups))
{
    struct mf_path_parts parts = {0};
    char allow[64];
    const struct mf_route *r =
        mf_route_find(lookups[_i].method, lookups[_i].path, &parts, allow, sizeof(allow));
    ck_assert_str_eq(allow, lookups[_i].allow);
    ck_assert_int_eq(r != NULL, lookups[_i].route != NULL);
    if (r) {
        ck_assert_str_eq(r->path, lookups[_i].route);
        ck_assert_int_eq(parts.ids[0], lookups[_i].id);
        ck_assert_str_eq(parts.name, lookups[_i].name ? lookups[_i].name : "");
    }
}

MF_TEST(test_table)
{
    size_t n;
    const struct mf_route *routes = mf_routes(&n);
    ck_assert_uint_lt(n, MF_HTTP_ROUTES_MAX);
    for (size_t i = 0; i < n; i++) {
        ck_assert_int_ne(routes[i].hops[0].owner, MF_OWNER_NONE);
        ck_assert_int_ne(routes[i].statuses[0], 0);
        ck_assert_ptr_nonnull(routes[i].produces);
        for (size_t j = 0; j < i; j++) {
            ck_assert_str_ne(routes[i].operation, routes[j].operation);
            ck_assert(strcmp(routes[i].path, routes[j].path) != 0 ||
                      strcmp(routes[i].method, routes[j].method) != 0);
        }
    }
}

/* --- the OpenAPI document, compared with the table of routes and with the responses --- */

static cJSON *document(int port)
{
    struct http_reply r = http_get(port, "/api/openapi.json");
    ck_assert_int_eq(r.status, 200);
    cJSON *json = mf_json_parse(r.body, r.len, r.len);
    ck_assert_ptr_nonnull(json);
    http_reply_free(&r);
    return json;
}

static const cJSON *operation(const cJSON *document, const struct mf_route *route)
{
    char method[16] = "";
    for (size_t i = 0; route->method[i]; i++)
        method[i] = (char)tolower((unsigned char)route->method[i]);
    return mf_json_object(mf_json_object(mf_json_object(document, "paths"), route->path), method);
}

static int count_operations(const cJSON *paths)
{
    int n = 0;
    for (const cJSON *path = paths->child; path; path = path->next)
        n += cJSON_GetArraySize(path);
    return n;
}

/* Every "$ref" must resolve. */
static void check_refs(const cJSON *root, const cJSON *json)
{
    for (const cJSON *item = json->child; item; item = item->next) {
        if (item->string && strcmp(item->string, "$ref") == 0) {
            const cJSON *at = root;
            char text[128];
            (void)snprintf(text, sizeof(text), "%s", item->valuestring);
            for (char *part = strtok(text, "/"); part; part = strtok(NULL, "/"))
                at = strcmp(part, "#") == 0 ? at : cJSON_GetObjectItemCaseSensitive(at, part);
            ck_assert_msg(at != NULL, "%s does not resolve", item->valuestring);
        }
        check_refs(root, item);
    }
}

/* Returns a path that matches the route and exists in the fixture. */
static void concrete(const struct mf_route *route, char *path, size_t cap)
{
    const char *brace = strchr(route->path, '{');
    if (!brace)
        (void)snprintf(path, cap, "%s", route->path);
    else
        (void)snprintf(path, cap, "%.*s1%s", (int)(brace - route->path), route->path, strchr(brace, '}') + 1);
}

/* Checks types, required members and the schemas of members, which is the part of JSON Schema that moefarm's
 * schemas use. Unknown members are errors, so that the document cannot lag behind the handlers. */
static void check_schema(const cJSON *root, const cJSON *schema, const cJSON *value, const char *where)
{
    const char *name = NULL;
    if (mf_json_text(schema, "$ref", &name) == 0)
        schema = mf_json_object(mf_json_object(mf_json_object(root, "components"), "schemas"),
                                strrchr(name, '/') + 1);
    ck_assert_msg(schema != NULL, "%s: no schema", where);
    static const char *const types[] = {"object", "array", "string", "integer", "number", "boolean", "null"};
    bool is[] = {cJSON_IsObject(value),
                 cJSON_IsArray(value),
                 cJSON_IsString(value),
                 cJSON_IsNumber(value) && value->valuedouble == (double)(int64_t)value->valuedouble,
                 cJSON_IsNumber(value),
                 cJSON_IsBool(value),
                 cJSON_IsNull(value)};
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(schema, "type"), *option;
    bool fits = type == NULL;
    for (size_t i = 0; type && i < MF_ARRAY_LEN(types); i++) {
        if (cJSON_IsString(type))
            fits |= is[i] && strcmp(type->valuestring, types[i]) == 0;
        else
            cJSON_ArrayForEach (option, type)
                fits |= is[i] && strcmp(option->valuestring, types[i]) == 0;
    }
    ck_assert_msg(fits, "%s: wrong type", where);
    bool listed = !cJSON_HasObjectItem(schema, "enum");
    cJSON_ArrayForEach (option, mf_json_array(schema, "enum"))
        listed |= cJSON_Compare(option, value, true);
    ck_assert_msg(listed, "%s: not in the enum", where);

    char at[256];
    const cJSON *properties = mf_json_object(schema, "properties"), *item;
    if (cJSON_IsObject(value) && properties) {
        cJSON_ArrayForEach (option, mf_json_array(schema, "required"))
            ck_assert_msg(cJSON_GetObjectItemCaseSensitive(value, option->valuestring) != NULL,
                          "%s.%s: missing", where, option->valuestring);
        cJSON_ArrayForEach (item, value) {
            (void)snprintf(at, sizeof(at), "%s.%s", where, item->string);
            const cJSON *property = cJSON_GetObjectItemCaseSensitive(properties, item->string);
            ck_assert_msg(property != NULL, "%s: not in the document", at);
            check_schema(root, property, item, at);
        }
    }
    if (cJSON_IsArray(value) && mf_json_object(schema, "items")) {
        (void)snprintf(at, sizeof(at), "%s[]", where);
        cJSON_ArrayForEach (item, value)
            check_schema(root, mf_json_object(schema, "items"), item, at);
    }
}

static void check_answer(const cJSON *doc, const struct mf_route *route, const struct http_reply *r,
                         const char *path)
{
    char status[8];
    (void)snprintf(status, sizeof(status), "%d", r->status);
    const cJSON *responses = mf_json_object(operation(doc, route), "responses");
    ck_assert_msg(cJSON_GetObjectItemCaseSensitive(responses, status) != NULL,
                  "%s %s answers %s, which is not documented", route->method, path, status);
    ck_assert_msg(r->status < 500, "%s %s: %s", route->method, path, r->body);
    if (r->status != 200 || strcmp(route->produces, "application/json") != 0 || !route->schema)
        return;
    const cJSON *content = mf_json_object(mf_json_object(responses, "200"), "content");
    cJSON *value = mf_json_parse(r->body, r->len, r->len);
    ck_assert_ptr_nonnull(value);
    check_schema(doc, mf_json_object(mf_json_object(content, "application/json"), "schema"), value, path);
    cJSON_Delete(value);
}

MF_TEST(test_document)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){.fixture = true});
    cJSON *doc = document(http_harness_port(h));
    size_t n;
    const struct mf_route *routes = mf_routes(&n);
    ck_assert_int_eq(count_operations(mf_json_object(doc, "paths")), (int)n);
    check_refs(doc, doc);
    for (size_t i = 0; i < n; i++) {
        char path[128];
        const struct mf_route *route = &routes[i];
        ck_assert_msg(operation(doc, route) != NULL, "%s %s is not in the document", route->method,
                      route->path);
        concrete(route, path, sizeof(path));
        if (strcmp(route->produces, "text/event-stream") == 0)
            continue; /* the stream does not end; check_stream tests it */
        struct http_reply r = http_call(http_harness_port(h), route->method, path, "", NULL, 0);
        check_answer(doc, route, &r, path);
        http_reply_free(&r);
    }
    /* the POST request above has created a release */
    static const char *const moves[] = {"/api/v1/channels/1/stage?release=1",
                                        "/api/v1/channels/1/approve?release=1"};
    for (size_t i = 0; i < MF_ARRAY_LEN(moves); i++) {
        struct http_reply r = http_call(http_harness_port(h), "POST", moves[i], "", NULL, 0);
        ck_assert_msg(r.status == 200, "%s: %s", moves[i], r.body);
        http_reply_free(&r);
    }
    /* these objects have more data in the fixture than the objects with id 1 */
    static const char *const more[] = {"/api/v1/batches/2",
                                       "/api/v1/batches/3",
                                       "/api/v1/tasks/5",
                                       "/api/v1/tasks/5/pipelines",
                                       "/api/v1/tasks/5/race",
                                       "/api/v1/tasks/10/steps",
                                       "/api/v1/tasks/10/rejections",
                                       "/api/v1/export/left_out?simulated=1",
                                       "/api/v1/releases",
                                       "/api/v1/releases/1",
                                       "/api/v1/releases/1/rows",
                                       "/api/v1/channels",
                                       "/api/v1/channels/1",
                                       "/api/v1/channels/1/history",
                                       "/api/v1/channels/1/tuned_fmoe.csv"};
    for (size_t i = 0; i < MF_ARRAY_LEN(more); i++) {
        struct mf_path_parts parts;
        char allow[64], path[128];
        (void)snprintf(path, sizeof(path), "%.*s", (int)strcspn(more[i], "?"), more[i]);
        const struct mf_route *route = mf_route_find("GET", path, &parts, allow, sizeof(allow));
        struct http_reply r = http_get(http_harness_port(h), more[i]);
        ck_assert_int_eq(r.status, 200);
        check_answer(doc, route, &r, more[i]);
        http_reply_free(&r);
    }
    cJSON_Delete(doc);
    http_harness_stop(h);
}

static bool has_parameter(const cJSON *parameters, const char *name)
{
    const cJSON *item;
    const char *text;
    cJSON_ArrayForEach (item, parameters) {
        if (mf_json_text(item, "name", &text) == 0 && strcmp(text, name) == 0)
            return true;
    }
    return false;
}

/* The query parameters of a submission, and the schema of its body, contain every batch option. */
MF_TEST(test_options)
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){0});
    cJSON *doc = document(http_harness_port(h));
    const cJSON *body =
        mf_json_object(mf_json_object(mf_json_object(doc, "components"), "schemas"), "Submission");
    const cJSON *members = mf_json_object(body, "properties");
    const cJSON *listed = mf_json_object(mf_json_object(members, "options"), "properties");
    struct mf_path_parts parts;
    char allow[64];
    const struct mf_route *route = mf_route_find("POST", "/api/v1/batches", &parts, allow, sizeof(allow));
    const cJSON *parameters = mf_json_array(operation(doc, route), "parameters");
    int n = 0;
    for (const struct mf_batch_option *o = mf_batch_option_next(NULL); o; o = mf_batch_option_next(o)) {
        n++;
        ck_assert_msg(cJSON_HasObjectItem(listed, o->name), "%s: not in the schema", o->name);
        ck_assert_msg(has_parameter(parameters, o->name), "%s: not a parameter", o->name);
    }
    ck_assert_int_eq(cJSON_GetArraySize(listed), n);
    /* the two other parameters are name and Idempotency-Key */
    ck_assert_int_eq(cJSON_GetArraySize(parameters), n + 2);
    cJSON_Delete(doc);
    http_harness_stop(h);
}

#define A_SHAPE                                                                                             \
    "{\"token\":4,\"model_dim\":64,\"inter_dim\":32,\"expert\":4,\"topk\":2,\"act_type\":\"ActivationType." \
    "Silu\","                                                                                               \
    "\"dtype\":\"torch.bfloat16\",\"q_dtype_a\":\"torch.bfloat16\",\"q_dtype_w\":\"torch.bfloat16\",\"q_"   \
    "type\":"                                                                                               \
    "\"QuantType.No\",\"use_g1u1\":1,\"doweight_stage1\":0,\"form\":\"ep:0/64\"}"

/* Bodies from docs/api.md, and responses that do not occur in any fixture. */
static const struct {
    const char *schema, *json;
} bodies[] = {
    {"Submission", "{\"name\":\"n\",\"baseline\":\"gfx,cu_num\",\"shapes\":[" A_SHAPE "]}"},
    {"Submission", "{\"csv\":\"token\",\"options\":{\"layout\":\"w1=row "
                   "w2=row\",\"promote\":\"improved\",\"min_effect\":0.05}}"},
    {"Submission", "{\"csv\":\"token\",\"options\":{\"routing\":[31,0,7],\"no_fuse\":[\"gemm1+act\"],\"split_"
                   "k\":false,\"shape_grouped\":1}}"},
    {"MissReport", "{\"source\":\"h/1\",\"class\":\"a/1\",\"misses\":[{\"shape\":" A_SHAPE
                   ",\"count\":3,\"layout\":\"w1=row w2=row\"}]}"},
    {"Miss", "{\"id\":1,\"class\":\"a/1\",\"shape\":" A_SHAPE
             ",\"count\":3,\"sources\":1,\"state\":\"open\",\"task\":null,\"first_ms\":1,\"last_ms\":2,"
             "\"layout\":\"\"}"},
    {"MissBatches",
     "{\"batches\":[{\"batch\":1,\"class\":\"a/1\",\"layout\":\"w1=row w2=row\",\"shapes\":2}]}"},
};

MF_TEST(test_bodies, .rows = MF_ARRAY_LEN(bodies))
{
    struct http_harness *h = http_harness_start(&(struct http_harness_options){0});
    cJSON *doc = document(http_harness_port(h)), *body = cJSON_Parse(bodies[_i].json);
    const cJSON *schemas = mf_json_object(mf_json_object(doc, "components"), "schemas");
    ck_assert_ptr_nonnull(body);
    check_schema(doc, mf_json_object(schemas, bodies[_i].schema), body, bodies[_i].schema);
    cJSON_Delete(body);
    cJSON_Delete(doc);
    http_harness_stop(h);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
