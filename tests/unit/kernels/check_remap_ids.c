/* Expert parallelism with experts assigned to ranks in arbitrary order: the results of all ranks, each
 * computed with its own experts and remapped ids, add up to the whole layer. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/data.h"
#include "kernels/core/layout.h"
#include "kernels/core/layout_weight.h"
#include "kernels/core/quant.h"
#include "kernels/pipeline/fmoe.h"
#include "kernels/reference/reference.h"
#include "support/kernels/family_contract.h"
#include "support/mf_check.h"

#define T     10
#define H     64
#define I     32
#define K     3
#define ALL   8
#define RANKS 3
#define SEED  11

/* clang-format off */
static const struct {
    const char *what;
    int32_t rank_of[ALL], place_of[ALL];
} placements[] = {
    {"round robin",                   {0, 1, 2, 0, 1, 2, 0, 1}, {0, 0, 0, 1, 1, 1, 2, 2}},
    {"by load, places in no order",   {0, 0, 1, 2, 1, 0, 2, 2}, {2, 0, 1, 0, 0, 1, 2, 1}},
    {"a rank with one expert only",   {2, 2, 0, 2, 1, 2, 1, 2}, {4, 3, 0, 2, 1, 0, 0, 1}},
};
/* clang-format on */

static struct mf_shape shape_of(int32_t experts, bool share)
{
    const struct contract_case c = {T, H, I, experts, K, MF_ACT_SILU, false};
    struct mf_shape s = contract_shape(&c, &contract_formats[0]);
    s.ep_experts = share ? ALL : 0;
    return s;
}

/* Gathers the weights of the rank's experts and converts them to the pipeline's layout. */
static void gather_weight(const struct mf_shape *s, const struct mf_pipeline *p, enum mf_tensor w,
                          const int32_t *map, const uint16_t *of_layer, struct mf_tensor_ref *ret)
{
    size_t n = (size_t)(w == MF_TENSOR_W1 ? 2 * I * H : H * I);
    struct mf_tensor_spec row = mf_plain_w(s, w, "row"), wanted = mf_pipeline_weight(p, w);
    uint16_t *to = aligned_alloc(64, (size_t)s->expert * n * sizeof(*to));
    ck_assert_ptr_nonnull(to);
    for (size_t e = 0; e < ALL; e++) {
        struct mf_tensor_ref from = {{(void *)(of_layer + e * n)}};
        if (map[e] >= 0)
            ck_assert_int_eq(mf_layout_convert_weight(s, &row, &wanted, &from,
                                                      &(struct mf_tensor_ref){{to + (size_t)map[e] * n}}),
                             0);
    }
    *ret = (struct mf_tensor_ref){{to}};
}

struct first_step {
    struct mf_offer offer;
    char name[MF_STEP_NAME_MAX + MF_FAMILY_NAME_MAX + 1];
};

static int take_first(struct mf_offer *o, const struct mf_step *step)
{
    struct first_step *f = (struct first_step *)o;
    if (f->name[0] == '\0')
        (void)snprintf(f->name, sizeof(f->name), "%s:%s", step->family, step->name);
    return 0;
}

/* Runs one rank and adds its result to `sum`. */
static void run_rank(struct mf_device *d, const struct mf_layer_data *layer, const int32_t *map,
                     int32_t n_here, float *sum)
{
    struct mf_shape s = shape_of(n_here, true);
    struct first_step one = {.offer = {.step = take_first, .reject = mf_offer_ignore_rejection}};
    const char *why = NULL;
    char reason[MF_REASON_MAX] = "";
    struct mf_pipeline *p = NULL;
    int32_t ids[T * K];
    uint16_t y[T * H];
    ck_assert_int_eq(mf_enumerate(&d->info, &s, "one_stage", &one.offer), 0);
    int r = mf_pipeline_open(d, &s, NULL, one.name, reason, sizeof(reason), &p);
    ck_assert_msg(r == 0, "%s: %s", one.name, reason);
    ck_assert_int_eq(mf_fmoe_remap_ids(&s, map, layer->ids, ids, &why), 0);
    struct mf_fmoe_args args = {.x = {{(void *)layer->x}},
                                .topk = {{ids, (void *)layer->weights}},
                                .y = {{y}},
                                .arena = aligned_alloc(64, (mf_pipeline_arena_bytes(p) + 127) / 64 * 64)};
    gather_weight(&s, p, MF_TENSOR_W1, map, layer->w1.part[0], &args.w1);
    gather_weight(&s, p, MF_TENSOR_W2, map, layer->w2.part[0], &args.w2);
    mf_pipeline_bind(p, &args);
    ck_assert_int_eq(mf_pipeline_run(p), 0);
    for (int i = 0; i < T * H; i++)
        sum[i] += mf_bf16_to_float(y[i]);
    free(args.w1.part[0]);
    free(args.w2.part[0]);
    free(args.arena);
    (void)mf_pipeline_close(p);
}

MF_TEST(ranks_add_up, .rows = MF_ARRAY_LEN(placements))
{
    struct mf_device *d = contract_device(NULL);
    struct mf_shape s = shape_of(ALL, false);
    static uint16_t x[T * H], w1[ALL * 2 * I * H], w2[ALL * H * I];
    int32_t ids[T * K];
    float weights[T * K], sum[T * H] = {0};
    struct mf_reference ref;
    struct mf_routing uniform = {.kind = MF_ROUTING_UNIFORM};
    struct mf_layer_data layer = {s, x, ids, weights, {{w1}}, {{w2}}, NULL, NULL};
    mf_data_x(&s, SEED, x);
    ck_assert_int_eq(mf_data_topk(&s, &uniform, SEED, ids, weights), 0);
    ck_assert_int_eq(mf_data_weight(&s, MF_TENSOR_W1, SEED, &layer.w1), 0);
    ck_assert_int_eq(mf_data_weight(&s, MF_TENSOR_W2, SEED, &layer.w2), 0);
    weights[4] = 0;
    ck_assert_int_eq(mf_reference_make(&layer, &ref), 0);
    weights[4] = 1;
    ids[4] = ALL; /* an expert that does not exist on any rank */
    for (int rank = 0; rank < RANKS; rank++) {
        int32_t map[ALL], n_here = 0;
        for (int e = 0; e < ALL; e++) {
            bool here = placements[_i].rank_of[e] == rank;
            map[e] = here ? placements[_i].place_of[e] : -1;
            n_here += here;
        }
        run_rank(d, &layer, map, n_here, sum);
    }
    for (int i = 0; i < T * H; i++)
        ck_assert_msg(fabsf(sum[i] - ref.y[i]) <= 0.01f + 0.02f * fabsf(ref.y[i]),
                      "%s: [%d, %d] is %g, not %g", placements[_i].what, i / H, i % H, (double)sum[i],
                      (double)ref.y[i]);
    mf_reference_release(&ref);
    (void)mf_device_close(d);
}

/* clang-format off */
static const struct {
    bool share;
    int32_t map[ALL];
    const char *why;
} refused[] = {
    {false, {0, 1, -1, -1, -1, -1, -1, -1}, "no expert parallelism"},
    {true,  {0, 1, 1, -1, -1, -1, -1, -1},  "two experts"},
    {true,  {0, 1, 2, -1, -1, -1, -1, -1},  "neither -1"},
    {true,  {0, -2, -1, -1, -1, -1, -1, 1}, "neither -1"},
};
/* clang-format on */

MF_TEST(invalid_map_refused, .rows = MF_ARRAY_LEN(refused))
{
    struct mf_shape s = shape_of(2, refused[_i].share);
    int32_t ids[T * K] = {0}, to[T * K];
    const char *why = "";
    memset(to, 0x55, sizeof(to));
    ck_assert_int_eq(mf_fmoe_remap_ids(&s, refused[_i].map, ids, to, &why), -EINVAL);
    ck_assert_msg(strstr(why, refused[_i].why), "%s", why);
    ck_assert_int_eq(to[0], 0x55555555);
}

int main(void)
{
    return mf_check_main(NULL);
}
