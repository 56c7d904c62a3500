#include "common/net/wire_bounds.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

#define PATH_MAX_BYTES 128
#define ID_MAX         0x1p53
#define RATIO_MAX      1e9   /* of times; a canary may stall for minutes */
#define ERROR_MAX      1e100 /* a wrong step may differ from its reference by any ratio of two floats */
#define COUNT_MAX      1e9
#define BYTES_MAX      1e18
#define FLOPS_MAX      1e24
#define OTHER_MAX      1e100 /* numbers that only newer peers know */

/* The same path has the same meaning in every message. "[]": each element of an array. "*": each member of an
 * object that has no row of its own. Sorted by path in ASCII order, for bsearch. */
/* clang-format off */
static const struct bound {
    const char *path;
    double min, max;
} bounds[] = {
    {"at_ms",                       0, ID_MAX},
    {"attempt",                     0, ID_MAX},
    {"beat_ms",                     0, ID_MAX},
    {"best_us.*",                   0, MF_TIME_US_MAX},
    {"busy.*",                      0, RATIO_MAX},
    {"canary",                      0, RATIO_MAX},
    {"credit",                      0, COUNT_MAX},
    {"device.clock_mhz",            0, 1e6},
    {"device.cores",                0, 0x1p24},
    {"device.gap_us",               0, 1e6},
    {"device.lds",                  0, BYTES_MAX},
    {"device.llc",                  0, BYTES_MAX},
    {"device.mem_read_gbs",         0, 1e7},
    {"device.memory",               0, BYTES_MAX},
    {"device.memory_mhz",           0, 1e6},
    {"device.peak_gflops.*",        0, 1e9},
    {"dropped_at",                  0, COUNT_MAX},
    {"epoch",                       0, ID_MAX},
    {"err",                         0, ERROR_MAX},
    {"fresh[]",                     0, MF_TIME_US_MAX},
    {"keep[].attempt",              0, ID_MAX},
    {"keep[].unit",                 0, ID_MAX},
    {"lds",                         0, BYTES_MAX},
    {"lease_ms",                    0, ID_MAX},
    {"mad",                         0, MF_TIME_US_MAX},
    {"occupancy",                   0, COUNT_MAX},
    {"pid",                         0, ID_MAX},
    {"pipeline",                    0, ID_MAX},
    {"pipelines[].forecast_us",     0, MF_TIME_US_MAX},
    {"pipelines[].group",           0, COUNT_MAX},
    {"pipelines[].id",              0, ID_MAX},
    {"race.active_experts",         0, COUNT_MAX},
    {"race.calls",                  0, COUNT_MAX},
    {"race.groups[].group",         0, COUNT_MAX},
    {"race.groups[].mad",           0, MF_TIME_US_MAX},
    {"race.groups[].ties[]",        0, ID_MAX},
    {"race.groups[].tries",         0, COUNT_MAX},
    {"race.groups[].us",            0, MF_TIME_US_MAX},
    {"race.groups[].winner",        0, ID_MAX},
    {"race.mad",                    0, MF_TIME_US_MAX},
    {"race.repeated",               0, COUNT_MAX},
    {"race.rounds",                 0, COUNT_MAX},
    {"race.ties[]",                 0, ID_MAX},
    {"race.tries",                  0, COUNT_MAX},
    {"race.us",                     0, MF_TIME_US_MAX},
    {"race.winner",                 0, ID_MAX},
    {"registers",                   0, COUNT_MAX},
    {"row_err",                     0, ERROR_MAX},
    {"row_limit",                   0, ERROR_MAX},
    {"running[].attempt",           0, ID_MAX},
    {"running[].done",              0, COUNT_MAX},
    {"running[].epoch",             0, ID_MAX},
    {"running[].total",             0, COUNT_MAX},
    {"running[].unit",              0, ID_MAX},
    {"samples[]",                   0, MF_TIME_US_MAX},
    {"seq",                         0, ID_MAX},
    {"sequence",                    0, ID_MAX},
    {"spills",                      0, COUNT_MAX},
    {"step",                        0, ID_MAX},
    {"steps[].block_m",             0, 0x1p31},
    {"steps[].bytes",               0, BYTES_MAX},
    {"steps[].flops",               0, FLOPS_MAX},
    {"steps[].id",                  0, ID_MAX},
    {"steps[].ksplit",              0, 0x1p31},
    {"steps[].reorder_tolerance",   0, ERROR_MAX},
    {"steps[].saved",               0, BYTES_MAX},
    {"steps[].workspace",           0, BYTES_MAX},
    {"unit",                        0, ID_MAX},
    {"us",                          0, MF_TIME_US_MAX},
    {"verified",                    0, 2},
};
/* clang-format on */

static const struct bound other = {"", -OTHER_MAX, OTHER_MAX};

static int compare(const void *path, const void *row)
{
    return strcmp(path, ((const struct bound *)row)->path);
}

static const struct bound *find_row(const char *path)
{
    return bsearch(path, bounds, MF_ARRAY_LEN(bounds), sizeof(bounds[0]), compare);
}

/* Returns the bounds of a path. If the path has no row, looks for a row of its parent with "*". */
static const struct bound *find(const char *path)
{
    char parent[PATH_MAX_BYTES];
    const struct bound *row = find_row(path);
    const char *dot = strrchr(path, '.');
    if (row || !dot)
        return row ? row : &other;
    mf_format(parent, sizeof(parent), "%.*s.*", (int)(dot - path), path);
    row = find_row(parent);
    return row ? row : &other;
}

static bool is_within(const struct bound *b, double value)
{
    return value >= b->min && value <= b->max; /* false for NaN */
}

static int check_number(const struct bound *b, const char *path, double value, char why[MF_REASON_MAX])
{
    if (is_within(b, value))
        return 0;
    mf_format(why, MF_REASON_MAX, "%s: %g is out of bounds; expected a number from %g to %g", path, value,
              b->min, b->max);
    return -EINVAL;
}

static int check_value(const cJSON *value, char path[PATH_MAX_BYTES], char why[MF_REASON_MAX]);

static int check_members(const cJSON *object, char path[PATH_MAX_BYTES], char why[MF_REASON_MAX])
{
    size_t len = strlen(path);
    int r = 0;
    for (const cJSON *member = object->child; r == 0 && member; member = member->next) {
        if (!cJSON_IsNumber(member) && !member->child)
            continue;
        mf_format(path + len, PATH_MAX_BYTES - len, "%s%s", len ? "." : "", member->string);
        r = check_value(member, path, why);
    }
    path[len] = '\0';
    return r;
}

static int check_elements(const cJSON *array, char path[PATH_MAX_BYTES], char why[MF_REASON_MAX])
{
    size_t len = strlen(path);
    int r = 0;
    mf_format(path + len, PATH_MAX_BYTES - len, "[]");
    const struct bound *b = find(path);
    for (const cJSON *element = array->child; r == 0 && element; element = element->next)
        r = cJSON_IsNumber(element) ? check_number(b, path, element->valuedouble, why)
                                    : check_value(element, path, why);
    path[len] = '\0';
    return r;
}

/* Recursion is bounded, because cJSON accepts at most 1000 levels. */
static int check_value(const cJSON *value, char path[PATH_MAX_BYTES], char why[MF_REASON_MAX])
{
    if (cJSON_IsNumber(value))
        return check_number(find(path), path, value->valuedouble, why);
    if (cJSON_IsObject(value))
        return check_members(value, path, why);
    return cJSON_IsArray(value) ? check_elements(value, path, why) : 0;
}

int mf_wire_bounds_check(const cJSON *body, char why[MF_REASON_MAX])
{
    char path[PATH_MAX_BYTES] = "";
    return check_value(body, path, why);
}

int mf_wire_bounds_check_step(const char *key, double value)
{
    char path[PATH_MAX_BYTES];
    mf_format(path, sizeof(path), "steps[].%s", key);
    return is_within(find(path), value) ? 0 : -EINVAL;
}
