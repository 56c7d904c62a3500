/* moefarm why --local: queries the kernel families of this build about a shape, without a farm. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/support/api.h"
#include "cli/support/shape_arg.h"
#include "cli/support/why.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/layer.h"
#include "kernels/core/device.h"
#include "kernels/core/family.h"

#define FAMILIES_MAX 16

MF_DEFINE_CLEANUP(struct mf_device *, mf_device_close);

struct local {
    struct mf_offer offer; /* must be the first member */
    const char *kernel;    /* NULL: print all rejections and the number of legal steps */
    cJSON *json;           /* NULL: print text instead of JSON */
    size_t n_matches;
    struct mf_why_similar similar;
    struct {
        char name[MF_FAMILY_NAME_MAX];
        size_t n;
    } legal[FAMILIES_MAX]; /* legal steps per family, in the order of the enumeration */
    size_t n_families;
};

static void count_step(struct local *l, const char *family)
{
    size_t i = 0;

    while (i < l->n_families && strcmp(l->legal[i].name, family) != 0)
        i++;
    if (i == FAMILIES_MAX)
        return;
    if (i == l->n_families)
        mf_format(l->legal[l->n_families++].name, sizeof(l->legal[i].name), "%s", family);
    l->legal[i].n++;
}

static int on_step(struct mf_offer *o, const struct mf_step *step)
{
    struct local *l = (struct local *)o;
    char covers[MF_OPS_TEXT_MAX];

    count_step(l, step->family);
    if (!l->kernel)
        return 0;
    mf_why_compare(&l->similar, l->kernel, step->family, step->name);
    if (!mf_why_match(l->kernel, step->family, step->name))
        return 0;
    l->n_matches++;
    if (l->json)
        return 0; /* print no legal step: the JSON list has only rejections, as in the API */
    mf_ops_print(step->covers, covers);
    printf("%s:%s covers %s: legal", step->family, step->name, covers);
    for (int i = 0; i < step->n_needs; i++) {
        if (mf_tensor_spec_is_weight(&step->needs[i]))
            printf(", %s in layout %s", mf_tensor_name(step->needs[i].tensor), step->needs[i].order);
    }
    printf("\n");
    return 0;
}

__attribute__((format(printf, 5, 6))) static int on_rejection(struct mf_offer *o, const char *family,
                                                              const char *kernel, const char *rule,
                                                              const char *format, ...)
{
    struct local *l = (struct local *)o;
    char reason[MF_REASON_MAX];
    va_list args;

    if (l->kernel)
        mf_why_compare(&l->similar, l->kernel, family, kernel);
    if (!mf_why_match(l->kernel, family, kernel))
        return 0;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    l->n_matches++;
    if (!l->json) {
        printf("%s:%s: %s (%s)\n", family, kernel, reason, rule);
        return 0;
    }
    cJSON *item = cJSON_CreateObject();
    if (!item || !cJSON_AddItemToArray(l->json, item))
        return -ENOMEM;
    cJSON_AddStringToObject(item, "family", family);
    cJSON_AddStringToObject(item, "kernel", kernel);
    cJSON_AddStringToObject(item, "rule", rule);
    cJSON_AddStringToObject(item, "reason", reason);
    return 0;
}

/* Parses a whole row or some columns. Columns other than the sizes default to the usual values. */
static int read_shape(const char *word, struct mf_shape *ret)
{
    struct mf_shape_pattern p;
    char why[MF_REASON_MAX];
    const char *column, *reason;

    if (mf_shape_pattern_parse(word, &p, why, sizeof(why)) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s", why);
    const struct {
        const char *column, *value; /* value NULL: the column has no usual value and is required */
    } usual[MF_SHAPE_N_COLUMNS] = {
        {"token", NULL},       {"model_dim", NULL},        {"inter_dim", NULL}, {"expert", NULL},
        {"topk", NULL},        {"act_type", "Silu"},       {"dtype", "bf16"},   {"q_dtype_a", "bf16"},
        {"q_dtype_w", "bf16"}, {"q_type", "QuantType.No"}, {"use_g1u1", "1"},   {"doweight_stage1", "0"},
    };
    for (int i = 0; i < MF_SHAPE_N_COLUMNS; i++) {
        if (p.set[i])
            continue;
        if (!usual[i].value)
            return mf_cli_fail(MF_EXIT_USAGE, "%s is missing in '%s': --local requires the five sizes",
                               usual[i].column, word);
        (void)mf_shape_set(&p.shape, usual[i].column, usual[i].value, &reason);
    }
    if (mf_shape_check(&p.shape, &column, &reason) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s: expected %s", column, reason);
    *ret = p.shape;
    return 0;
}

static void print_legal(const struct local *l)
{
    printf("legal steps:");
    for (size_t i = 0; i < l->n_families; i++)
        printf("%s %s %zu", i > 0 ? "," : "", l->legal[i].name, l->legal[i].n);
    printf("%s\n", l->n_families > 0 ? "" : " none");
}

int mf_why_local(struct mf_cli *cli, const struct mf_why_local *where, const char *word, const char *kernel)
{
    struct local l = {.offer = {on_step, on_rejection}, .kernel = kernel};
    _cleanup_(cJSON_Deletep) cJSON *json = cli->json ? cJSON_CreateArray() : NULL;
    _cleanup_(mf_device_closep) struct mf_device *device = NULL;
    char why[MF_REASON_MAX] = "", brief[MF_SHAPE_BRIEF_MAX];
    struct mf_shape shape;
    int code = read_shape(word, &shape);

    if (code != 0)
        return code;
    if (mf_device_open(where->device, why, sizeof(why), &device) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--device: %s", why);
    l.json = json;
    mf_shape_brief(&shape, brief);
    if (!json)
        printf("%s/%d  %s\n", device->info.class.gfx, device->info.class.cu_num, brief);
    if (mf_enumerate(&device->info, &shape, where->families, &l.offer) < 0)
        return mf_cli_out_of_memory();
    if (json)
        return mf_api_print(json);
    if (!kernel)
        print_legal(&l);
    else if (l.n_matches == 0)
        return mf_why_no_match(&l.similar, kernel);
    return MF_EXIT_OK;
}
