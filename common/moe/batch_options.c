#include "common/moe/batch_options.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/text.h"

/* ---- fields ---- */

static void *field(const struct mf_batch_option *o, struct mf_batch_options *options)
{
    return (char *)options + o->offset;
}

static const void *const_field(const struct mf_batch_option *o, const struct mf_batch_options *options)
{
    return (const char *)options + o->offset;
}

/* ---- integers and numbers ---- */

bool mf_batch_option_fits(const struct mf_batch_option *o, double value)
{
    return value >= o->min && (o->below_max ? value < o->max : value <= o->max);
}

static int parse_int(const struct mf_batch_option *o, const char *text, struct mf_batch_options *ret)
{
    return mf_parse_i64(text, (int64_t)o->min, (int64_t)o->max, field(o, ret));
}

static void print_int(const struct mf_batch_option *o, const struct mf_batch_options *options, cJSON *json)
{
    mf_json_add_i64(json, o->name, *(const int64_t *)const_field(o, options));
}

static void read_int(const struct mf_batch_option *o, const cJSON *json, struct mf_batch_options *ret)
{
    (void)mf_json_i64(json, o->name, (int64_t)o->min, (int64_t)o->max, field(o, ret));
}

static int parse_number(const struct mf_batch_option *o, const char *text, struct mf_batch_options *ret)
{
    double number;
    if (mf_parse_double(text, &number) < 0 || !mf_batch_option_fits(o, number))
        return -EINVAL;
    *(double *)field(o, ret) = number;
    return 0;
}

static void print_number(const struct mf_batch_option *o, const struct mf_batch_options *options, cJSON *json)
{
    cJSON_AddNumberToObject(json, o->name, *(const double *)const_field(o, options));
}

static void read_number(const struct mf_batch_option *o, const cJSON *json, struct mf_batch_options *ret)
{
    double number;
    if (mf_json_double(json, o->name, &number) == 0 && mf_batch_option_fits(o, number))
        *(double *)field(o, ret) = number;
}

/* ---- flags ---- */

static int parse_flag(const struct mf_batch_option *o, const char *text, struct mf_batch_options *ret)
{
    return mf_parse_bool(text, field(o, ret));
}

static void print_flag(const struct mf_batch_option *o, const struct mf_batch_options *options, cJSON *json)
{
    cJSON_AddNumberToObject(json, o->name, *(const bool *)const_field(o, options));
}

static void read_flag(const struct mf_batch_option *o, const cJSON *json, struct mf_batch_options *ret)
{
    int64_t flag;
    if (mf_json_i64(json, o->name, 0, 1, &flag) == 0)
        *(bool *)field(o, ret) = flag == 1;
}

static void print_private(const struct mf_batch_option *o, const struct mf_batch_options *options,
                          cJSON *json)
{
    cJSON_AddBoolToObject(json, o->name, *(const bool *)const_field(o, options));
}

static void read_private(const struct mf_batch_option *o, const cJSON *json, struct mf_batch_options *ret)
{
    (void)mf_json_bool(json, o->name, field(o, ret));
}

/* ---- names: every enum of an option is an unsigned int ---- */

static_assert(sizeof(enum mf_search) == sizeof(unsigned) && sizeof(enum mf_promote) == sizeof(unsigned),
              "enums of options are unsigned");

static int parse_name(const struct mf_batch_option *o, const char *text, struct mf_batch_options *ret)
{
    for (unsigned i = 0; o->names[i]; i++) {
        if (strcmp(o->names[i], text) == 0) {
            memcpy(field(o, ret), &i, sizeof(i));
            return 0;
        }
    }
    return -EINVAL;
}

static void print_name(const struct mf_batch_option *o, const struct mf_batch_options *options, cJSON *json)
{
    unsigned value;
    memcpy(&value, const_field(o, options), sizeof(value));
    cJSON_AddStringToObject(json, o->name, o->names[value]);
}

/* ---- texts ---- */

static int parse_text(const struct mf_batch_option *o, const char *text, struct mf_batch_options *ret)
{
    return o->syntax->parse(text, ret);
}

static void print_text(const struct mf_batch_option *o, const struct mf_batch_options *options, cJSON *json)
{
    char text[MF_OPTION_VALUE_MAX];
    o->syntax->print(options, 0, text);
    cJSON_AddStringToObject(json, o->name, text);
}

static void read_text(const struct mf_batch_option *o, const cJSON *json, struct mf_batch_options *ret)
{
    const char *text;
    if (mf_json_text(json, o->name, &text) == 0)
        (void)mf_batch_option_parse(o, text, ret);
}

/* ---- lists ---- */

static int add_item(const struct mf_batch_option *o, const char *text, struct mf_batch_options *ret)
{
    return *(int *)field(o, ret) < (int)o->max ? o->syntax->parse(text, ret) : -EINVAL;
}

static int add_part(const struct mf_batch_option *o, const char *text, size_t len,
                    struct mf_batch_options *ret)
{
    char item[MF_OPTION_VALUE_MAX];
    if (len >= sizeof(item))
        return -EINVAL;
    memcpy(item, text, len);
    item[len] = '\0';
    return add_item(o, item, ret);
}

static int parse_list(const struct mf_batch_option *o, const char *text, struct mf_batch_options *ret)
{
    int *n = field(o, ret), r = 0;
    *n = 0;
    if (!*text || (o->syntax->empty && strcmp(text, o->syntax->empty) == 0))
        return o->min > 0 ? -EINVAL : 0;
    for (bool more = true; r == 0 && more;) {
        size_t len = strcspn(text, ",");
        r = add_part(o, text, len, ret);
        more = text[len] == ',';
        text += len + more;
    }
    return r;
}

static void print_list(const struct mf_batch_option *o, const struct mf_batch_options *options, cJSON *json)
{
    const int *n = const_field(o, options);
    cJSON *list = cJSON_AddArrayToObject(json, o->name);
    for (int i = 0; i < *n; i++) {
        char text[MF_OPTION_VALUE_MAX];
        o->syntax->print(options, i, text);
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
}

/* Skips items that are not valid, such as ops that this version does not know. */
static void read_list(const struct mf_batch_option *o, const cJSON *json, struct mf_batch_options *ret)
{
    const cJSON *item, *list = mf_json_array(json, o->name);
    int *n = field(o, ret);
    if (list)
        *n = 0;
    cJSON_ArrayForEach (item, list) {
        if (cJSON_IsString(item))
            (void)add_item(o, item->valuestring, ret);
    }
}

/* ---- what a text must be ---- */

/* Prints an integer bound with all its digits, and 1e15 without the '+' that "%g" would print. */
static void print_bound(const struct mf_batch_option *o, double bound, char buf[32])
{
    mf_format(buf, 32, o->type == MF_OPTION_INT ? "%.0f" : "%g", bound);
    char *plus = strchr(buf, '+');
    if (plus)
        memmove(plus, plus + 1, strlen(plus));
}

void mf_batch_option_range(const struct mf_batch_option *o, char buf[MF_OPTION_RANGE_MAX])
{
    char min[32], max[32];
    print_bound(o, o->min, min);
    print_bound(o, o->max, max);
    mf_format(buf, MF_OPTION_RANGE_MAX, "%s to %s%s", min, o->below_max ? "below " : "", max);
}

static void expect_int(const struct mf_batch_option *o, char buf[MF_OPTION_HELP_MAX])
{
    char range[MF_OPTION_RANGE_MAX];
    mf_batch_option_range(o, range);
    mf_format(buf, MF_OPTION_HELP_MAX, "an integer from %s", range);
}

static void expect_number(const struct mf_batch_option *o, char buf[MF_OPTION_HELP_MAX])
{
    char range[MF_OPTION_RANGE_MAX];
    mf_batch_option_range(o, range);
    mf_format(buf, MF_OPTION_HELP_MAX, "a number from %s", range);
}

static void expect_flag(const struct mf_batch_option *o, char buf[MF_OPTION_HELP_MAX])
{
    (void)o;
    mf_format(buf, MF_OPTION_HELP_MAX, "0 or 1");
}

/* "race, exhaustive or enumerate" */
static void expect_name(const struct mf_batch_option *o, char buf[MF_OPTION_HELP_MAX])
{
    char *at = buf, *end = buf + MF_OPTION_HELP_MAX - 1;
    *at = '\0';
    for (int i = 0; o->names[i]; i++) {
        at = mf_append(at, end, i == 0 ? "" : o->names[i + 1] ? ", " : " or ");
        at = mf_append(at, end, o->names[i]);
    }
}

static void expect_list(const struct mf_batch_option *o, char buf[MF_OPTION_HELP_MAX])
{
    const char *empty = o->syntax->empty;
    mf_format(buf, MF_OPTION_HELP_MAX, "%s%sup to %.0f %s", empty ? empty : "", empty ? " or " : "", o->max,
              o->syntax->items);
}

/* ---- types ---- */

static const struct {
    int (*parse)(const struct mf_batch_option *o, const char *text, struct mf_batch_options *ret);
    void (*print)(const struct mf_batch_option *o, const struct mf_batch_options *options, cJSON *json);
    void (*read)(const struct mf_batch_option *o, const cJSON *json, struct mf_batch_options *ret);
    void (*expect)(const struct mf_batch_option *o, char buf[MF_OPTION_HELP_MAX]); /* NULL: see `expected` */
} types[MF_OPTION_N_TYPES_] = {
    [MF_OPTION_INT] = {parse_int, print_int, read_int, expect_int},
    [MF_OPTION_NUMBER] = {parse_number, print_number, read_number, expect_number},
    [MF_OPTION_FLAG] = {parse_flag, print_flag, read_flag, expect_flag},
    [MF_OPTION_NAME] = {parse_name, print_name, read_text, expect_name},
    [MF_OPTION_TEXT] = {parse_text, print_text, read_text, NULL},
    [MF_OPTION_ROUTING] = {parse_text, print_text, read_text, NULL},
    [MF_OPTION_LIST] = {parse_list, print_list, read_list, expect_list},
    [MF_OPTION_PRIVATE] = {NULL, print_private, read_private, NULL},
};

int mf_batch_option_parse(const struct mf_batch_option *o, const char *text, struct mf_batch_options *ret)
{
    return types[o->type].parse(o, text, ret) < 0 ? -EINVAL : 0;
}

const struct mf_batch_option *mf_batch_option_next(const struct mf_batch_option *o)
{
    size_t n;
    const struct mf_batch_option *table = mf_batch_option_table(&n);
    for (o = o ? o + 1 : table; o < table + n; o++) {
        if (o->type != MF_OPTION_PRIVATE)
            return o;
    }
    return NULL;
}

const struct mf_batch_option *mf_batch_option_find(const char *name)
{
    const struct mf_batch_option *o = mf_batch_option_next(NULL);
    while (o && strcmp(o->name, name) != 0)
        o = mf_batch_option_next(o);
    return o;
}

/* ---- all options ---- */

struct mf_batch_options mf_batch_options_default(void)
{
    struct mf_batch_options options = {0};
    for (const struct mf_batch_option *o = mf_batch_option_next(NULL); o; o = mf_batch_option_next(o)) {
        if (o->initial)
            (void)mf_batch_option_parse(o, o->initial, &options);
    }
    return options;
}

static bool is_default(const struct mf_batch_option *o, const struct mf_batch_options *options)
{
    const struct mf_batch_options standard = mf_batch_options_default();
    _cleanup_(cJSON_Deletep) cJSON *a = cJSON_CreateObject();
    _cleanup_(cJSON_Deletep) cJSON *b = cJSON_CreateObject();
    types[o->type].print(o, options, a);
    types[o->type].print(o, &standard, b);
    return cJSON_Compare(a, b, true);
}

cJSON *mf_batch_options_print(const struct mf_batch_options *options, bool for_units)
{
    size_t n;
    const struct mf_batch_option *table = mf_batch_option_table(&n);
    cJSON *json = cJSON_CreateObject();
    for (const struct mf_batch_option *o = table; o < table + n; o++) {
        if ((o->for_units || !for_units) && !(o->if_changed && is_default(o, options)))
            types[o->type].print(o, options, json);
    }
    return json;
}

void mf_batch_options_read(const cJSON *json, struct mf_batch_options *ret)
{
    size_t n;
    const struct mf_batch_option *table = mf_batch_option_table(&n);
    *ret = mf_batch_options_default();
    for (const struct mf_batch_option *o = table; o < table + n; o++)
        types[o->type].read(o, json, ret);
}

/* ---- messages and help ---- */

void mf_batch_option_expected(const struct mf_batch_option *o, char buf[MF_OPTION_HELP_MAX])
{
    char text[MF_OPTION_HELP_MAX];
    if (!o->expected)
        types[o->type].expect(o, text);
    mf_format(buf, MF_OPTION_HELP_MAX, "expected %s", o->expected ? o->expected : text);
}

const char *mf_batch_option_initial(const struct mf_batch_option *o)
{
    return o->initial_help ? o->initial_help : o->initial;
}

void mf_batch_option_help(const struct mf_batch_option *o, char buf[MF_OPTION_HELP_MAX])
{
    char range[MF_OPTION_RANGE_MAX + 2] = "";
    if (o->type == MF_OPTION_LIST)
        mf_format(range, sizeof(range), ", up to %.0f", o->max);
    else if (o->type == MF_OPTION_INT || o->type == MF_OPTION_NUMBER) {
        memcpy(range, ", ", 2);
        mf_batch_option_range(o, range + 2);
    }
    mf_format(buf, MF_OPTION_HELP_MAX, "%s%s (default: %s)", o->summary, range, mf_batch_option_initial(o));
}
