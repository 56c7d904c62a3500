/* Tests which layers of other programs a ranking keeps (server/choose/foreign_layers.h). */
#include "server/choose/foreign_layers.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/layer.h"
#include "support/mf_check.h"

#define N_VLLM 40 /* more than a search keeps of one structure */
#define LAYER  ((mf_ops)(MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_GEMM2)))

static struct mf_step steps[N_VLLM + 8];
static struct mf_path_step timed[N_VLLM + 8];
static size_t n_steps;

static void add_spec(const char *text, struct mf_tensor_spec *to, int32_t *n)
{
    ck_assert_int_eq(mf_tensor_spec_parse(text, &to[*n]), 0);
    ++*n;
}

/* Adds a step that computes the layer, or only gemm2. */
static void add_step(const char *family, const char *name, double us, bool foreign, mf_ops covers)
{
    struct mf_step *s = &steps[n_steps];
    *s = (struct mf_step){.covers = covers, .foreign = foreign};
    (void)mf_copy(s->family, sizeof(s->family), family);
    (void)mf_copy(s->name, sizeof(s->name), name);
    add_spec("x/bf16/none/token", s->needs, &s->n_needs);
    add_spec("w1/bf16/none/row", s->needs, &s->n_needs);
    add_spec("w2/bf16/none/row", s->needs, &s->n_needs);
    add_spec("y/bf16/none/token", s->gives, &s->n_gives);
    timed[n_steps++] = (struct mf_path_step){s, us};
}

static struct mf_path_problem make_problem(void)
{
    char name[32];
    n_steps = 0;
    add_step("one_stage", "ours", 50, false, LAYER);
    for (int i = 0; i < N_VLLM; i++) {
        mf_format(name, sizeof(name), "triton_m%d", i + 1);
        add_step("vllm", name, 100 + i, true, LAYER);
    }
    add_step("vllm", "default", 500, true, LAYER);
    add_step("torch_grouped", "grouped_mm", 300, true, LAYER);
    add_step("torch_grouped", "slower", 400, true, LAYER);
    add_step("torch_grouped", "gemm2", 10, true, MF_OP_BIT(MF_OP_GEMM2));
    return (struct mf_path_problem){.ops = LAYER,
                                    .format = MF_FORMAT_BF16,
                                    .steps = timed,
                                    .n_steps = n_steps,
                                    .gap_us = 1,
                                    .keep = MF_PATH_KEEP_MAX};
}

/* Returns the place of a step's pipeline among the paths, or -1. */
static int place_of(const char *name, const struct mf_path *paths, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (paths[i].n == 1 && strcmp(steps[paths[i].steps[0]].name, name) == 0)
            return (int)i;
    }
    return -1;
}

static const struct {
    enum mf_consumer consumer;
    const char *name;
    enum mf_foreign_layer expected;
} layers[] = {
    {MF_CONSUMER_ANY, "ours", MF_LAYER_OTHER},       {MF_CONSUMER_ANY, "triton_m1", MF_LAYER_SHOWN},
    {MF_CONSUMER_ANY, "triton_m2", MF_LAYER_OTHER},  {MF_CONSUMER_ANY, "grouped_mm", MF_LAYER_SHOWN},
    {MF_CONSUMER_VLLM, "default", MF_LAYER_RACES},   {MF_CONSUMER_SGLANG, "triton_m1", MF_LAYER_SHOWN},
    {MF_CONSUMER_VLLM, "triton_m1", MF_LAYER_SHOWN},
};

/* The search finds neither the default, which is slow, nor torch's layer. Both are added in their places. */
MF_TEST(keeps_the_best_of_each_program, .rows = MF_ARRAY_LEN(layers))
{
    const struct mf_path_problem p = make_problem();
    _cleanup_(mf_freep) struct mf_path *paths = NULL;
    size_t n = 0;
    ck_assert_int_ge(mf_path_find(&p, &paths, &n), 0);
    ck_assert_int_eq(place_of("grouped_mm", paths, n), -1);
    ck_assert_int_eq(place_of("default", paths, n), -1);
    size_t before = n;
    ck_assert_int_eq(mf_foreign_layers_add(&p, layers[_i].consumer, &paths, &n), 0);
    ck_assert_uint_eq(n, before + (layers[_i].consumer == MF_CONSUMER_VLLM ? 2 : 1));
    for (size_t i = 1; i < n; i++)
        ck_assert_double_ge(paths[i].us, paths[i - 1].us);
    ck_assert_int_ge(place_of("grouped_mm", paths, n), 0);
    int place = place_of(layers[_i].name, paths, n);
    enum mf_foreign_layer layer =
        place < 0 ? MF_LAYER_OTHER : mf_foreign_layer(&p, layers[_i].consumer, &paths[place]);
    ck_assert_msg(layer == layers[_i].expected, "%s: %d", layers[_i].name, (int)layer);
    /* a second call adds nothing */
    before = n;
    ck_assert_int_eq(mf_foreign_layers_add(&p, layers[_i].consumer, &paths, &n), 0);
    ck_assert_uint_eq(n, before);
}

int main(void)
{
    return mf_check_main(NULL);
}
