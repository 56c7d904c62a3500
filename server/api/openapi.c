/* Generates /api/openapi.json from the table of routes, schemas.json and the table of batch options. */
#include "server/api/api.h"

#include "common/base/json.h"
#include "server/api/routes.h"
#include "server/http/gate.h"
#include "server/http/problem.h"
#include "server/page/embed.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static cJSON *ref(const char *kind, const char *name)
{
    char text[96];
    cJSON *o = cJSON_CreateObject();
    (void)snprintf(text, sizeof(text), "#/components/%s/%s", kind, name);
    cJSON_AddStringToObject(o, "$ref", text);
    return o;
}

static cJSON *type_of(const char *type)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "type", type);
    return o;
}

static cJSON *parameter(const char *name, const char *in, const char *summary, cJSON *schema)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "name", name);
    cJSON_AddStringToObject(o, "in", in);
    cJSON_AddBoolToObject(o, "required", strcmp(in, "path") == 0);
    cJSON_AddStringToObject(o, "description", summary);
    cJSON_AddItemToObject(o, "schema", schema);
    return o;
}

static cJSON *parameter_schema(enum mf_parameter_type type)
{
    static const char *const names[] = {[MF_PARAM_TEXT] = "string",
                                        [MF_PARAM_INT] = "integer",
                                        [MF_PARAM_NUMBER] = "number",
                                        [MF_PARAM_FLAG] = "integer"};
    cJSON *o = type_of(names[type]);
    cJSON *values = type == MF_PARAM_FLAG ? cJSON_AddArrayToObject(o, "enum") : NULL;
    for (int i = 0; values && i < 2; i++)
        cJSON_AddItemToArray(values, cJSON_CreateNumber(i));
    return o;
}

/* ---- batch options ---- */

static void add_option_parameters(cJSON *list)
{
    for (const struct mf_batch_option *o = mf_batch_option_next(NULL); o; o = mf_batch_option_next(o)) {
        char help[MF_OPTION_HELP_MAX];
        mf_batch_option_help(o, help);
        cJSON_AddItemToArray(list,
                             parameter(o->name, "query", help, parameter_schema(mf_option_parameter(o))));
    }
}

/* Uses mf_json_add_i64, because cJSON prints large integers rounded. */
static cJSON *int_schema(const struct mf_batch_option *o)
{
    cJSON *schema = type_of("integer");
    mf_json_add_i64(schema, "minimum", (int64_t)o->min);
    mf_json_add_i64(schema, "maximum", (int64_t)o->max);
    return schema;
}

static cJSON *number_schema(const struct mf_batch_option *o)
{
    cJSON *schema = type_of("number");
    cJSON_AddNumberToObject(schema, "minimum", o->min);
    cJSON_AddNumberToObject(schema, o->below_max ? "exclusiveMaximum" : "maximum", o->max);
    return schema;
}

static cJSON *flag_schema(const struct mf_batch_option *o)
{
    static const char *const types[] = {"boolean", "integer"};
    cJSON *schema = cJSON_CreateObject();
    (void)o;
    cJSON_AddItemToObject(schema, "type", cJSON_CreateStringArray(types, MF_ARRAY_LEN(types)));
    return schema;
}

static cJSON *name_schema(const struct mf_batch_option *o)
{
    cJSON *schema = cJSON_CreateObject(), *values = cJSON_AddArrayToObject(schema, "enum");
    for (const char *const *name = o->names; *name; name++)
        cJSON_AddItemToArray(values, cJSON_CreateString(*name));
    return schema;
}

static cJSON *text_schema(const struct mf_batch_option *o)
{
    (void)o;
    return type_of("string");
}

/* A text, or an array of items. */
static cJSON *array_schema(cJSON *items)
{
    cJSON *schema = cJSON_CreateObject(), *any = cJSON_AddArrayToObject(schema, "anyOf");
    cJSON *array = type_of("array");
    cJSON_AddItemToObject(array, "items", items);
    cJSON_AddItemToArray(any, type_of("string"));
    cJSON_AddItemToArray(any, array);
    return schema;
}

static cJSON *list_schema(const struct mf_batch_option *o)
{
    (void)o;
    return array_schema(type_of("string"));
}

static cJSON *routing_schema(const struct mf_batch_option *o)
{
    cJSON *count = type_of("integer");
    (void)o;
    cJSON_AddNumberToObject(count, "minimum", 0);
    return array_schema(count);
}

static cJSON *(*const option_schemas[MF_OPTION_N_TYPES_])(const struct mf_batch_option *) = {
    [MF_OPTION_INT] = int_schema,         [MF_OPTION_NUMBER] = number_schema, [MF_OPTION_FLAG] = flag_schema,
    [MF_OPTION_NAME] = name_schema,       [MF_OPTION_TEXT] = text_schema,     [MF_OPTION_LIST] = list_schema,
    [MF_OPTION_ROUTING] = routing_schema,
};

/* Adds the batch options to the schema of a submission. */
static void add_option_schemas(cJSON *schemas)
{
    const cJSON *members = mf_json_object(mf_json_object(schemas, "Submission"), "properties");
    cJSON *properties = cJSON_AddObjectToObject(mf_json_object(members, "options"), "properties");
    for (const struct mf_batch_option *o = mf_batch_option_next(NULL); o; o = mf_batch_option_next(o))
        cJSON_AddItemToObject(properties, o->name, option_schemas[o->type](o));
}

/* ---- operations ---- */

static cJSON *parameters(const struct mf_route *route)
{
    cJSON *list = cJSON_CreateArray();
    if (strstr(route->path, "{name}"))
        cJSON_AddItemToArray(list, parameter("name", "path", "name of the object", type_of("string")));
    if (strstr(route->path, "{id}")) {
        cJSON *id = type_of("integer");
        cJSON_AddNumberToObject(id, "minimum", 1);
        cJSON_AddItemToArray(list, parameter("id", "path", "id of the object", id));
    }
    for (const struct mf_parameter *p = route->parameters; p && p->name; p++) {
        if (p->type == MF_PARAM_BATCH_OPTIONS)
            add_option_parameters(list);
        else
            cJSON_AddItemToArray(list, parameter(p->name, "query", p->summary, parameter_schema(p->type)));
    }
    if (route->page) {
        cJSON *limit = type_of("integer");
        cJSON_AddNumberToObject(limit, "minimum", 1);
        cJSON_AddNumberToObject(limit, "maximum", MF_PAGE_LIMIT_MAX);
        cJSON_AddNumberToObject(limit, "default", MF_PAGE_LIMIT_DEFAULT);
        cJSON_AddItemToArray(list,
                             parameter("limit", "query", "maximum number of items in the response", limit));
        cJSON_AddItemToArray(list,
                             parameter("cursor", "query", "`next` of the previous page", type_of("string")));
    }
    if (strcmp(route->operation, "submitBatch") == 0 || strcmp(route->operation, "reportMisses") == 0)
        cJSON_AddItemToArray(list, parameter("Idempotency-Key", "header",
                                             "repeating a key with the same body returns the first response",
                                             type_of("string")));
    if (strcmp(route->produces, "text/event-stream") == 0)
        cJSON_AddItemToArray(
            list, parameter("Last-Event-ID", "header", "id of the last event received", type_of("string")));
    bool tagged = false;
    for (size_t i = 0; i < MF_ARRAY_LEN(route->statuses); i++)
        tagged |= route->statuses[i] == 304 && route->role != MF_ROLE_NONE;
    if (tagged)
        cJSON_AddItemToArray(
            list, parameter("If-None-Match", "header", "ETag of the client's copy", type_of("string")));
    return list;
}

static cJSON *success_schema(const struct mf_route *route)
{
    if (!route->schema)
        return type_of("string");
    if (!route->page)
        return ref("schemas", route->schema);
    cJSON *list = type_of("object"), *properties = cJSON_AddObjectToObject(list, "properties");
    cJSON *items = type_of("array"), *next = cJSON_CreateObject();
    cJSON_AddItemToObject(items, "items", ref("schemas", route->schema));
    cJSON_AddItemToObject(properties, "items", items);
    cJSON *types = cJSON_AddArrayToObject(next, "type");
    cJSON_AddItemToArray(types, cJSON_CreateString("string"));
    cJSON_AddItemToArray(types, cJSON_CreateString("null"));
    cJSON_AddItemToObject(properties, "next", next);
    cJSON *required = cJSON_AddArrayToObject(list, "required");
    cJSON_AddItemToArray(required, cJSON_CreateString("items"));
    cJSON_AddItemToArray(required, cJSON_CreateString("next"));
    return list;
}

static void add_response(cJSON *responses, int status, const struct mf_route *route)
{
    char code[8];
    (void)snprintf(code, sizeof(code), "%d", status);
    if (cJSON_GetObjectItemCaseSensitive(responses, code))
        return; /* already listed by the route */
    if (status >= 400) {
        cJSON_AddItemToObject(responses, code, ref("responses", "Problem"));
        return;
    }
    cJSON *o = cJSON_AddObjectToObject(responses, code);
    cJSON_AddStringToObject(o, "description", mf_status_title(status));
    if (status == 304)
        return;
    cJSON *content = cJSON_AddObjectToObject(o, "content");
    cJSON_AddItemToObject(cJSON_AddObjectToObject(content, route->produces), "schema", success_schema(route));
}

static const char *body_schema(const struct mf_route *route)
{
    static const char *const schemas[][2] = {{"reportMisses", "MissReport"}, {"readModel", "Model"}};
    for (size_t i = 0; i < MF_ARRAY_LEN(schemas); i++) {
        if (strcmp(route->operation, schemas[i][0]) == 0)
            return schemas[i][1];
    }
    return "Submission";
}

static void add_body(cJSON *operation, const struct mf_route *route)
{
    if (!route->consumes[0])
        return;
    cJSON *body = cJSON_AddObjectToObject(operation, "requestBody");
    cJSON_AddBoolToObject(body, "required", true);
    cJSON *content = cJSON_AddObjectToObject(body, "content");
    for (int i = 0; route->consumes[i]; i++) {
        bool json = strcmp(route->consumes[i], "application/json") == 0;
        cJSON_AddItemToObject(cJSON_AddObjectToObject(content, route->consumes[i]), "schema",
                              json ? ref("schemas", body_schema(route)) : type_of("string"));
    }
}

/* Routes with a role accept either scheme; x-role is the minimum role. */
static void add_security(cJSON *operation, const struct mf_route *route)
{
    static const char *const schemes[] = {"bearer", "cookie"};
    cJSON *list = cJSON_AddArrayToObject(operation, "security");
    for (size_t i = 0; route->role != MF_ROLE_NONE && i < MF_ARRAY_LEN(schemes); i++) {
        cJSON *one = cJSON_CreateObject();
        (void)cJSON_AddArrayToObject(one, schemes[i]);
        cJSON_AddItemToArray(list, one);
    }
    cJSON_AddStringToObject(operation, "x-role", mf_role_name(route->role));
}

static void add_schemes(cJSON *components)
{
    cJSON *schemes = cJSON_AddObjectToObject(components, "securitySchemes");
    cJSON *bearer = cJSON_AddObjectToObject(schemes, "bearer");
    cJSON_AddStringToObject(bearer, "type", "http");
    cJSON_AddStringToObject(bearer, "scheme", "bearer");
    cJSON *cookie = cJSON_AddObjectToObject(schemes, "cookie");
    cJSON_AddStringToObject(cookie, "type", "apiKey");
    cJSON_AddStringToObject(cookie, "in", "cookie");
    cJSON_AddStringToObject(cookie, "name", MF_GATE_COOKIE);
}

static cJSON *operation(const struct mf_route *route)
{
    static const int common[] = {400, 401, 403, 404, 406, 429, 500, 503};
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "operationId", route->operation);
    cJSON_AddStringToObject(o, "summary", route->summary);
    cJSON_AddItemToObject(o, "parameters", parameters(route));
    add_body(o, route);
    add_security(o, route);
    cJSON *responses = cJSON_AddObjectToObject(o, "responses");
    for (int i = 0; i < 8 && route->statuses[i]; i++)
        add_response(responses, route->statuses[i], route);
    for (size_t i = 0; i < MF_ARRAY_LEN(common); i++)
        add_response(responses, common[i], route);
    return o;
}

static cJSON *paths(void)
{
    size_t n;
    const struct mf_route *routes = mf_routes(&n);
    cJSON *list = cJSON_CreateObject();
    for (size_t i = 0; i < n; i++) {
        char method[16];
        size_t len = 0;
        for (; routes[i].method[len] && len < sizeof(method) - 1; len++)
            method[len] = (char)tolower((unsigned char)routes[i].method[len]);
        method[len] = 0;
        cJSON *path = cJSON_GetObjectItemCaseSensitive(list, routes[i].path);
        if (!path)
            path = cJSON_AddObjectToObject(list, routes[i].path);
        cJSON_AddItemToObject(path, method, operation(&routes[i]));
    }
    return list;
}

static cJSON *components(void)
{
    size_t len;
    const char *text = mf_embedded("schemas.json", &len);
    cJSON *schemas = text ? mf_json_parse(text, len, len) : NULL;
    if (!schemas)
        return NULL;
    cJSON *o = cJSON_CreateObject();
    add_option_schemas(schemas);
    cJSON_AddItemToObject(o, "schemas", schemas);
    add_schemes(o);
    cJSON *problem = cJSON_AddObjectToObject(cJSON_AddObjectToObject(o, "responses"), "Problem");
    cJSON_AddStringToObject(problem, "description", "Error with the affected field and the fix");
    cJSON *content = cJSON_AddObjectToObject(problem, "content");
    cJSON_AddItemToObject(cJSON_AddObjectToObject(content, "application/problem+json"), "schema",
                          ref("schemas", "Problem"));
    return o;
}

int mf_api_openapi(void *http, struct mf_request *r)
{
    (void)http;
    _cleanup_(cJSON_Deletep) cJSON *o = cJSON_CreateObject();
    cJSON *parts = components();
    if (!o || !parts)
        return mf_refuse_errno(&r->response, -ENOMEM, "create the OpenAPI document");
    cJSON_AddStringToObject(o, "openapi", "3.1.0");
    cJSON *info = cJSON_AddObjectToObject(o, "info");
    cJSON_AddStringToObject(info, "title", "moefarm");
    cJSON_AddStringToObject(info, "version", MF_VERSION);
    cJSON_AddStringToObject(info, "description", "A tuning farm for fused mixture-of-experts layers.");
    cJSON_AddItemToObject(o, "paths", paths());
    cJSON_AddItemToObject(o, "components", parts);
    return mf_respond_json(&r->response, 200, MF_TAKE(o));
}
