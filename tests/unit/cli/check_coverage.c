/* cli/coverage/coverage.c and moefarm csv coverage: tests the token counts that a table serves under each set
 * of rules, the near misses, and the output of the command. */
#include <string.h>

#include "cli/coverage/coverage.h"
#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"
#include "support/table_columns.h"

#define HEADER TUNED_COLUMNS ",_tag,pipeline,form\n"
#define FN     "torch.float8_e4m3fn"
#define FNUZ   "torch.float8_e4m3fnuz"
#define BF16   "torch.bfloat16"
#define FP4    "torch.float4_e2m1fn_x2"

/* deepseek-v3 with tensor parallelism over 8 ranks, and similar layers */
#define SIZES(expert, topk) "7168,256," expert "," topk
#define LAYER               SIZES("256", "8")
#define FUSED               SIZES("257", "9")
#define KEY(sizes, act, a, w, q, doweight) \
    sizes ",ActivationType." act ",torch.bfloat16," a "," w ",QuantType." q ",1," doweight
#define PLAIN KEY(LAYER, "Silu", FN, FN, "per_1x128", "0")

/* Rows of one layer model for all buckets from `first` to `last`. */
struct ladder {
    int64_t first, last;
    const char *key, *class, *tag, *form; /* defaults for NULL: class gfx950,256, no tag, no form */
};

static void add_ladder(struct mf_buf *out, const struct ladder *l)
{
    for (int64_t token = l->first; token <= l->last; token = token == 32768 ? 131072 : token * 2)
        ck_assert_int_eq(
            mf_buf_addf(out, "%s,%lld,%s,32,0,1.0,kernel,0.0%%,1.0,other,0.0%%,2.0,0,0,0,1.0,1.0,%s,,%s\n",
                        l->class ? l->class : "gfx950,256", (long long)token, l->key, l->tag ? l->tag : "",
                        l->form ? l->form : ""),
            0);
}

#define LADDERS 3
#define ROWS(first, last, key)             \
    {                                      \
        first, last, key, NULL, NULL, NULL \
    }

static void print_table(const struct ladder *ladders, struct mf_buf *out)
{
    mf_buf_init(out, 1u << 20);
    ck_assert_int_eq(mf_buf_adds(out, HEADER), 0);
    for (int i = 0; i < LADDERS && ladders[i].key; i++)
        add_ladder(out, &ladders[i]);
}

/* ---- replay of the look-up ---- */

#define RANK_FORM "ep:32/256"

/* clang-format off */
static const struct {
    struct ladder ladders[LADDERS];
    const char *requested; /* key and form of the requested layer */
    enum mf_lookup rules;
    int64_t tokens[MF_COVERED_N_]; /* hit, tier, rank, other, hole */
    int64_t first_hole;            /* 0: no hole */
    const char *near;              /* columns of the first near miss; "" if there is no near miss */
    const char *meaning;           /* fragment of the near miss's meaning */
    size_t near_rows;
    int64_t near_tokens;
} cases[] = {
    /* complete ladders */
    {{ROWS(1, 131072, PLAIN)}, PLAIN, MF_LOOKUP_MOEFARM, {131072, 0, 0, 0, 0}, 0, "", "", 0, 0},
    {{ROWS(1, 32768, PLAIN)},  PLAIN, MF_LOOKUP_MOEFARM, {131071, 1, 0, 0, 0}, 0, "", "", 0, 0},
    {{ROWS(1, 32768, PLAIN)},  PLAIN, MF_LOOKUP_AITER,   {131071, 1, 0, 0, 0}, 0, "", "", 0, 0},
    /* the ladder has a hole from 33 to 64 */
    {{ROWS(1, 32, PLAIN), ROWS(128, 32768, PLAIN)}, PLAIN, MF_LOOKUP_MOEFARM, {131039, 1, 0, 0, 32}, 33, "",
     "", 0, 0},
    /* one ladder ends early, another one begins late */
    {{ROWS(1, 4096, PLAIN)}, PLAIN, MF_LOOKUP_MOEFARM, {4096, 0, 0, 0, 126976}, 4097, "", "", 0, 0},
    {{ROWS(512, 32768, PLAIN)}, PLAIN, MF_LOOKUP_AITER, {130815, 1, 0, 0, 256}, 1, "", "", 0, 0},
    /* fusing a shared expert changes expert and topk from (256, 8) to (257, 9) */
    {{ROWS(1, 32768, KEY(FUSED, "Silu", FN, FN, "per_1x128", "0"))}, PLAIN, MF_LOOKUP_MOEFARM,
     {0, 0, 0, 0, 131072}, 1,
     "expert topk", "A SHARED EXPERT IS FUSED into the routed experts in the table", 16, 131072},
    {{ROWS(1, 32768, PLAIN)}, KEY(FUSED, "Silu", FN, FN, "per_1x128", "0"), MF_LOOKUP_AITER,
     {0, 0, 0, 0, 131072}, 1,
     "expert topk", "A SHARED EXPERT IS FUSED into the routed experts in the call", 16, 131072},
    /* one column differs */
    {{ROWS(1, 32768, KEY(SIZES("257", "8"), "Silu", FN, FN, "per_1x128", "0"))}, PLAIN, MF_LOOKUP_AITER,
     {0, 0, 0, 0, 131072}, 1,
     "expert", "topk - is_ep", 16, 131072},
    {{ROWS(1, 32768, KEY(SIZES("256", "9"), "Silu", FN, FN, "per_1x128", "0"))}, PLAIN, MF_LOOKUP_AITER,
     {0, 0, 0, 0, 131072}, 1,
     "topk", "masked route", 16, 131072},
    {{ROWS(1, 1, KEY("7168,512,256,8", "Silu", FN, FN, "per_1x128", "0"))}, PLAIN, MF_LOOKUP_MOEFARM,
     {0, 0, 0, 0, 131072}, 1,
     "inter_dim", "tensor parallel", 1, 1},
    {{ROWS(64, 64, KEY("7168,256,32,8", "Silu", FN, FN, "per_1x128", "0"))}, PLAIN, MF_LOOKUP_MOEFARM,
     {0, 0, 0, 0, 131072}, 1,
     "expert", "expert parallel", 1, 32},
    {{{1, 1, PLAIN, "gfx942,304", NULL, NULL}}, PLAIN, MF_LOOKUP_MOEFARM, {0, 0, 0, 0, 131072}, 1, "class",
     "device class", 1, 1},
    {{ROWS(1, 1, KEY(LAYER, "Silu", FN, FN, "per_1x128", "1"))}, PLAIN, MF_LOOKUP_MOEFARM,
     {0, 0, 0, 0, 131072}, 1,
     "doweight_stage1", "other stage", 1, 1},
    {{{1, 1, PLAIN, NULL, NULL, "limit:10"}}, PLAIN, MF_LOOKUP_MOEFARM, {0, 0, 0, 0, 131072}, 1, "form",
     "limits", 1, 1},
    {{{1, 1, PLAIN, NULL, "fast", NULL}}, PLAIN, MF_LOOKUP_MOEFARM, {0, 0, 0, 0, 131072}, 1, "_tag", "tag", 1,
     1},
    {{{1, 32768, PLAIN, NULL, "flydsl_fallback", NULL}}, PLAIN, MF_LOOKUP_AITER, {0, 0, 0, 0, 131072}, 1,
     "_tag", "tag", 16, 131072},
    {{ROWS(1, 1, SIZES("256", "8") ",ActivationType.Silu,dtypes.bf16," FN "," FN ",QuantType.per_1x128,1,0")},
     PLAIN,
     MF_LOOKUP_AITER, {0, 0, 0, 0, 131072}, 1, "spelling", "compares the key as text", 1, 1},
    /* two columns differ; of two near misses, the near miss with a known meaning comes first */
    {{ROWS(1, 32768, KEY(LAYER, "Silu", FNUZ, FNUZ, "per_1x128", "0"))}, PLAIN, MF_LOOKUP_MOEFARM,
     {0, 0, 0, 0, 131072}, 1,
     "q_dtype_a q_dtype_w", "the other fp8", 16, 131072},
    {{ROWS(1, 32768, KEY(LAYER, "Silu", FN, FN, "per_Token", "0")),
     ROWS(64, 64, KEY(FUSED, "Silu", FN, FN, "per_1x128", "0"))}, PLAIN,
     MF_LOOKUP_MOEFARM, {0, 0, 0, 0, 131072}, 1, "expert topk", "A SHARED EXPERT", 1, 32},
    {{ROWS(1, 1, KEY(SIZES("256", "6"), "Gelu", FN, FN, "per_Token", "0"))}, PLAIN, MF_LOOKUP_MOEFARM,
     {0, 0, 0, 0, 131072}, 1,
     "", "", 0, 0}, /* three columns differ, so the row is not a near miss */
    /* AITER's lookup ignores the activation function; libfmoe's lookup does not */
    {{ROWS(1, 32768, KEY(LAYER, "Gelu", FN, FN, "per_1x128", "0")), ROWS(1, 32768, PLAIN)}, PLAIN,
     MF_LOOKUP_AITER,
     {0, 0, 0, 131072, 0}, 0, "", "", 0, 0},
    {{ROWS(1, 32768, KEY(LAYER, "Gelu", FN, FN, "per_1x128", "0")), ROWS(1, 32768, PLAIN)}, PLAIN,
     MF_LOOKUP_MOEFARM,
     {131071, 1, 0, 0, 0}, 0, "", "", 0, 0},
    {{ROWS(1, 32768, PLAIN), ROWS(1, 32768, KEY(LAYER, "Gelu", FN, FN, "per_1x128", "0"))}, PLAIN,
     MF_LOOKUP_AITER,
     {131071, 1, 0, 0, 0}, 0, "", "", 0, 0},
    /* AITER chooses the activation type, so calls of 129 to 255 tokens look up bf16 in the row of 256 tokens
     */
    {{ROWS(1, 128, KEY(LAYER, "Swiglu", BF16, FP4, "per_1x32", "0")),
     ROWS(256, 32768, KEY(LAYER, "Swiglu", FP4, FP4, "per_1x32", "0"))},
     KEY(LAYER, "Swiglu", FP4, FP4, "per_1x32", "0"), MF_LOOKUP_AITER, {130944, 1, 0, 0, 127}, 129,
     "q_dtype_a", "before padding", 1, 127},
    {{ROWS(1, 128, KEY(LAYER, "Swiglu", BF16, FP4, "per_1x32", "0")),
     ROWS(256, 32768, KEY(LAYER, "Swiglu", FP4, FP4, "per_1x32", "0"))},
     KEY(LAYER, "Swiglu", FP4, FP4, "per_1x32", "0"), MF_LOOKUP_DROP_IN, {130944, 1, 0, 0, 127}, 129,
     "q_dtype_a", "before padding", 1, 127},
    {{ROWS(1, 32768, KEY(LAYER, "Swiglu", FP4, FP4, "per_1x32", "0"))},
     KEY(LAYER, "Swiglu", FP4, FP4, "per_1x32", "0"),
     MF_LOOKUP_MOEFARM, {131071, 1, 0, 0, 0}, 0, "", "", 0, 0},
    /* expert parallelism: the row of another rank serves; AITER's rows do not contain a rank */
    {{{1, 32768, KEY(SIZES("32", "8"), "Silu", FN, FN, "per_1x128", "0"), NULL, NULL, "ep:0/256"}},
     KEY(SIZES("32", "8"), "Silu", FN, FN, "per_1x128", "0") "," RANK_FORM, MF_LOOKUP_MOEFARM,
     {0, 1, 131071, 0, 0}, 0, "", "", 0, 0},
    {{ROWS(1, 32768, KEY(SIZES("32", "8"), "Silu", FN, FN, "per_1x128", "0"))},
     KEY(SIZES("32", "8"), "Silu", FN, FN, "per_1x128", "0") "," RANK_FORM, MF_LOOKUP_AITER,
     {131071, 1, 0, 0, 0}, 0, "", "", 0, 0},
};
/* clang-format on */

static void name_differences(unsigned differs, struct mf_buf *out)
{
    mf_buf_init(out, 256);
    ck_assert_int_eq(mf_buf_adds(out, ""), 0);
    for (int i = 0; i < MF_NEAR_COLUMNS; i++) {
        if (differs & 1u << i)
            ck_assert_int_eq(mf_buf_addf(out, "%s%s", out->len ? " " : "", mf_near_name(i)), 0);
    }
}

MF_TEST(replay, .rows = MF_ARRAY_LEN(cases))
{
    _cleanup_(mf_buf_release) struct mf_buf text, names;
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    _cleanup_(mf_coverage_release) struct mf_coverage c = MF_COVERAGE_INIT;
    struct mf_coverage_query q = {.n_tables = 1, .class = {"gfx950", 256}, .rules = cases[_i].rules};
    const struct mf_coverage_near *near;
    char row[MF_SHAPE_TEXT_MAX + 8], why[MF_REASON_MAX] = "";
    int64_t next = 1, first_hole = 0, total = 0;

    print_table(cases[_i].ladders, &text);
    mf_buf_init(&names, 256);
    ck_assert_msg(mf_table_read("t.csv", text.data, text.len, &t, why) == 0, "%s", why);
    mf_format(row, sizeof(row), "1,%s", cases[_i].requested);
    ck_assert_msg(mf_shape_parse(row, &q.layer) == 0, "%s", row);
    q.tables = (const struct mf_table *const[]){t};
    ck_assert_int_eq(mf_coverage_find(&q, &c), 0);

    for (size_t i = 0; i < c.n_spans; i++) { /* every token count is in exactly one span */
        const struct mf_coverage_span *s = &c.spans[i];

        ck_assert_int_eq(s->first, next);
        ck_assert_int_ge(s->last, s->first);
        ck_assert((s->row == NULL) == (s->result == MF_COVERED_HOLE));
        ck_assert(s->result != MF_COVERED_OTHER || (s->own && s->own->shape.act_type == q.layer.act_type));
        if (s->result == MF_COVERED_HOLE && first_hole == 0)
            first_hole = s->first;
        next = s->last + 1;
    }
    ck_assert_int_eq(next, MF_COVERAGE_TOKENS + 1);
    ck_assert_int_eq(first_hole, cases[_i].first_hole);
    for (int i = 0; i < MF_COVERED_N_; i++) {
        ck_assert_msg(c.tokens[i] == cases[_i].tokens[i], "case %d: %s %lld", _i,
                      mf_covered_name((enum mf_covered)i), (long long)c.tokens[i]);
        total += c.tokens[i];
    }
    ck_assert_int_eq(total, MF_COVERAGE_TOKENS);
    near = c.n_near > 0 ? &c.near[0] : NULL;
    name_differences(near ? near->differs : 0, &names);
    ck_assert_str_eq(names.data, cases[_i].near);
    if (near) {
        ck_assert_msg(strstr(near->meaning, cases[_i].meaning) != NULL, "%s", near->meaning);
        ck_assert_uint_eq(near->n_rows, cases[_i].near_rows);
        ck_assert_int_eq(near->tokens, cases[_i].near_tokens);
    }
}

/* ---- the command ---- */

#define WORDS 12

/* clang-format off */
static const struct {
    struct ladder ladders[LADDERS];
    const char *words[WORDS]; /* arguments after the name of the table */
    int code;
    const char *out[4], *err;
} runs[] = {
    {{ROWS(1, 32768, PLAIN)}, {"--model", "deepseek-v3", "--tp", "8"}, 0,
     {"Every token count from 1 to 131072 is served.", "layer: H7168 I256 E256 k8 fp8_e4m3fn per_1x128",
      "look-up rules: AITER's",
      "16385..131071  table.csv:17"}, ""},
    {{ROWS(1, 32768, PLAIN)}, {"--model", "deepseek-ai/DeepSeek-V3", "--tp", "8", "--fused-shared-experts",
     "yes"}, 1,
     {"No token count from 1 to", "expert 256 instead of 257 and topk 8 instead of 9",
      "A SHARED EXPERT IS FUSED",
      "table.csv:2-17  16 rows for 131072 token counts"}, ""},
    {{ROWS(1, 64, PLAIN), ROWS(256, 32768, PLAIN)}, {"--model", "deepseek-v3", "--tp", "8"}, 1,
     {"64 of 131072 token counts are NOT served: no row for token 128.", "65..128 → 128", NULL, NULL}, ""},
    {{ROWS(1, 64, PLAIN), ROWS(256, 32768, PLAIN)}, {"--model", "deepseek-v3", "--tp", "8", "--untuned", "-"},
     1,
     {"doweight_stage1\n128,7168,256,256,8,ActivationType.Silu,torch.bfloat16," FN "," FN
      ",QuantType.per_1x128,1,0\n", NULL, NULL,
      NULL}, "65..128 → 128"},
    {{ROWS(1, 32768, PLAIN)}, {"--model", "deepseek-v3", "--tp", "8", "--json"}, 0,
     {"\"complete\":\ttrue", "\"hit\":\t131071", "\"consumer\":\t\"aiter\"", "\"line\":\t17"}, ""},
    {{ROWS(1, 32768, PLAIN)}, {"--model", "deepseek-v3", "--tp", "8", "--consumer", "moefarm"}, 0,
     {"look-up rules: libfmoe", "note: the rows have no pipeline column", NULL, NULL}, ""},
    {{ROWS(1, 32768, KEY(LAYER, "Gelu", FN, FN, "per_1x128", "0")), ROWS(1, 32768, PLAIN)},
     {"--model", "deepseek-v3", "--tp", "8"}, 1,
     {"131072 token counts would use a row of ANOTHER ACTIVATION FUNCTION",
      "Rows of the right function exist, but later",
      "ROW FOR Gelu; the matching row is line 18", NULL}, ""},
    {{ROWS(1, 32768, PLAIN)}, {"--model", "deepseek-v3", "--tp", "8", "--class", "gfx942/80"}, 1,
     {"No token count", "layer: H7168 I256 E256 k8 fp8_e4m3fnuz",
      "The tables have no row of device class gfx942/80.", NULL}, ""},
    {{ROWS(1, 32768, KEY(LAYER, "Silu", FN, FN, "per_Token", "0"))},
     {"--model", "deepseek-v3", "--tp=8", "--q-type", "per_Token"}, 0,
     {"Every token count", NULL, NULL, NULL}, ""},
    {{ROWS(1, 32768, KEY(LAYER, "Silu", BF16, BF16, "No", "0"))},
     {"--model", "deepseek-v3", "--tp=8", "--q-type", "No"}, 0,
     {"Every token count", NULL, NULL, NULL}, ""},
    {{ROWS(1, 32768, KEY(LAYER, "Silu", BF16, "torch.int4", "per_1x32", "0"))},
     {"--model", "deepseek-v3", "--tp=8", "--q-type", "per_1x32", "--q-dtype-w", "int4"}, 0,
      {"Every token count", NULL, NULL, NULL}, ""},
    {{ROWS(1, 32768, KEY("7168,384,256,8", "Silu", FN, FN, "per_1x128", "0"))},
     {"--model", "deepseek-v3", "--tp=8"}, 1,
     {"padded sizes", "use --set inter_dim=384", NULL, NULL}, ""},
    {{ROWS(1, 32768, KEY("7168,384,256,8", "Silu", FN, FN, "per_1x128", "0"))},
     {"--model", "deepseek-v3", "--tp=8", "--set", "inter_dim=384"}, 0,
      {"Every token count", NULL, NULL, NULL}, ""},
    {{ROWS(1, 32768, PLAIN)}, {"--model", "CONFIG", "--tp", "8"}, 0,
     {"Every token count", " on gfx950/256", NULL, NULL},
     "weights, QuantType.per_1x128 (config.json: quantization_config: weight_block_size [128,128])"},
    {{ROWS(1, 32768, PLAIN)}, {"--model", "CONFIG", "--tp=8", "--json"}, 0,
     {"\"quant_source\":\t\"config.json: quantization_config: weight", NULL, NULL, NULL}, ""},
    /* usage errors */
    {{ROWS(1, 1, PLAIN)}, {"--tp", "8"}, 2, {NULL}, "give --model"},
    {{ROWS(1, 1, PLAIN)}, {"--model", "deepseek-v33"}, 2, {NULL},
     "'deepseek-v33': neither a known model nor a config.json; did you mean deepseek-v3?"},
    {{ROWS(1, 1, PLAIN)}, {"--model", "nowhere.json"}, 2, {NULL}, "nowhere.json"},
    {{ROWS(1, 1, PLAIN)}, {"--model", "deepseek-v3", "--tp", "3"}, 2, {NULL},
     "cannot be divided over 3 ranks"},
    {{ROWS(1, 1, PLAIN)}, {"--model", "deepseek-v3", "--fused-shared-experts", "2"}, 2, {NULL},
     "has 1 shared expert"},
    {{ROWS(1, 1, PLAIN)}, {"--model", "deepseek-v3", "--fused-shared-experts", "some"}, 2, {NULL},
     "yes, no, or a number"},
    {{ROWS(1, 1, PLAIN)}, {"--model", "deepseek-v3", "--class", "gfx950"}, 2, {NULL},
     "--class 'gfx950': expected GFX/CU"},
    {{ROWS(1, 1, PLAIN)}, {"--model", "deepseek-v3", "--consumer", "vllm"}, 2, {NULL},
     "--consumer 'vllm': expected moefarm, drop-in or aiter"},
    {{ROWS(1, 1, PLAIN)}, {"--model", "deepseek-v3", "--q-type", "per_1x32"}, 2, {NULL},
     "give --q-dtype-w too"},
    {{ROWS(1, 1, PLAIN)}, {"--model", "deepseek-v3", "--q-type", "int3"}, 2, {NULL},
     "--q-type 'int3': expected"},
    {{ROWS(1, 1, PLAIN)}, {"--model", "deepseek-v3", "--set", "colour=red"}, 2, {NULL},
     "--set: 'colour': unknown column"},
    {{ROWS(1, 1, PLAIN)}, {"--model", "deepseek-v3", "--set", "topk=300"}, 2, {NULL}, "--set: topk"},
    {{ROWS(1, 1, PLAIN)}, {"--model", "deepseek-v3", "--json", "--untuned", "-"}, 2, {NULL},
     "both write to standard output"},
    {{ROWS(1, 1, PLAIN), {1, 1, PLAIN, "gfx942,304", NULL, NULL}}, {"--model", "deepseek-v3"}, 2, {NULL},
     "have rows of several device classes (gfx950/256, gfx942/304)"},
};
/* clang-format on */

static const char config[] = "{\"hidden_size\": 7168, \"moe_intermediate_size\": 2048, \"n_routed_experts\": "
                             "256, \"num_experts_per_tok\": 8, "
                             "\"n_shared_experts\": 1, \"quantization_config\": {\"quant_method\": \"fp8\", "
                             "\"weight_block_size\": [128, 128]}}";

MF_TEST(command, .rows = MF_ARRAY_LEN(runs))
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    const char *const *w = runs[_i].words;
    const char *words[WORDS];

    make_folder();
    print_table(runs[_i].ladders, &text);
    text_file_write(in_folder("table.csv"), text.data);
    text_file_write(in_folder("config.json"), config);
    for (int i = 0; i < WORDS; i++) /* --model accepts the folder of config.json */
        words[i] = w[i] && strcmp(w[i], "CONFIG") == 0 ? folder : w[i];
    struct ran r =
        moefarm("", "csv", "coverage", in_folder("table.csv"), words[0], words[1], words[2], words[3],
                words[4], words[5], words[6], words[7], words[8], words[9], words[10], NULL);
    assert_code(r, runs[_i].code);
    for (size_t i = 0; i < MF_ARRAY_LEN(runs[_i].out) && runs[_i].out[i]; i++)
        assert_says(r.out, runs[_i].out[i]);
    assert_says(r.err, runs[_i].err);
    ck_assert_int_eq(unlink(in_folder("config.json")), 0);
    remove_folder();
}

/* All files of a folder may be given. An unreadable row is reported. */
MF_TEST(other_files_and_unreadable_rows)
{
    const struct ladder half[LADDERS] = {ROWS(1, 16384, PLAIN)};
    _cleanup_(mf_buf_release) struct mf_buf text;

    make_folder();
    print_table(half, &text);
    ck_assert_int_eq(mf_buf_adds(&text, "gfx950,256,32768,7168,0,0,8\n"), 0);
    text_file_write(in_folder("table.csv"), text.data);
    struct ran r =
        moefarm("", "csv", "coverage", MF_TEST_DATA "/aiter/untuned_fmoe.csv", in_folder("table.csv"),
                MF_TEST_DATA "/aiter/tuned_fhmoe.csv", "--model", "deepseek-v3", "--tp", "8", NULL);
    assert_code(r, 1);
    assert_says(r.err, "untuned_fmoe.csv: ");
    assert_says(r.err, "tuned_fhmoe.csv: ");
    assert_says(r.out, "no row for token 32768.");
    assert_says(r.out, "note: 1 row of the tables cannot be read");
    r = moefarm("", "csv", "coverage", MF_TEST_DATA "/aiter/untuned_fmoe.csv", "--model", "deepseek-v3",
                NULL);
    assert_code(r, 2);
    assert_says(r.err, "no file is a tuned_fmoe.csv");
    remove_folder();
}

/* Without a table, all rows of the model's ladder are missing, and writing the missing rows succeeds. */
MF_TEST(whole_ladder)
{
    make_folder();
    struct ran r = moefarm("", "csv", "coverage", "--model", "minimax-m2.5", "--ep", "4", "--class",
                           "gfx942/304", "--untuned", in_folder("shapes.csv"), NULL);
    assert_code(r, 0);
    assert_says(r.err, "wrote 16 missing rows to");
    assert_says(read_file(in_folder("shapes.csv")),
                "\n32768,3072,1536,64,8,ActivationType.Silu,torch.bfloat16," FNUZ "," FNUZ
                ",QuantType.per_1x128,1,0,ep:0/256\n");
    r = moefarm("", "csv", "coverage", "--model", "minimax-m2.5", "--ep", "4", "--class", "gfx942/304",
                "--consumer", "aiter", "--untuned", "-", NULL);
    assert_code(r, 0);
    assert_says(r.out, "\n32768,3072,1536,64,8,ActivationType.Silu,torch.bfloat16," FNUZ "," FNUZ
                       ",QuantType.per_1x128,1,0\n");
    remove_folder();
}

/* If the rows that --untuned wrote are tuned, coverage finds no more holes. */
MF_TEST(untuned_fills_the_holes)
{
    const struct ladder half[LADDERS] = {ROWS(1, 64, KEY(FUSED, "Silu", FN, FN, "per_1x128", "0"))};
    _cleanup_(mf_buf_release) struct mf_buf text;
    char *missing, *line, *rest, *more;
    size_t n = 0;

    make_folder();
    print_table(half, &text);
    text_file_write(in_folder("table.csv"), text.data);
    struct ran r = moefarm("", "csv", "coverage", in_folder("table.csv"), "--model", "deepseek-r1", "--tp",
                           "8", "--fused-shared-experts", "1", "--untuned", in_folder("shapes.csv"), NULL);
    assert_code(r, 1);
    assert_says(r.err, "wrote 9 missing rows to");
    missing = read_file(in_folder("shapes.csv"));
    rest = strchr(missing, '\n') + 1;
    for (line = strtok_r(rest, "\n", &more); line; line = strtok_r(NULL, "\n", &more), n++) {
        int64_t token = strtoll(line, NULL, 10);
        const struct ladder row = {token, token, strchr(line, ',') + 1, NULL, NULL, NULL};
        add_ladder(&text, &row);
    }
    ck_assert_uint_eq(n, 9);
    text_file_write(in_folder("table.csv"), text.data);
    r = moefarm("", "csv", "coverage", in_folder("table.csv"), "--model", "deepseek-r1", "--tp", "8",
                "--fused-shared-experts", "yes", NULL);
    assert_code(r, 0);
    remove_folder();
}

/* A quantisation in a file beside config.json counts; an unknown one is an error with the options to set
 * it. */
MF_TEST(checkpoint_files)
{
    static const char *const files[][2] = {
        {"{\"quantization\": {\"quant_algo\": \"NVFP4\", \"group_size\": 16}}",
         "experts have torch.float4_e2m1fn_x2 activations and torch.float4_e2m1fn_x2 weights, "
         "QuantType.per_1x16 (hf_quant_config.json: quantization: quant_algo NVFP4, group_size 16)"},
        {"{\"quantization\": {\"quant_algo\": \"W4A8_AWQ\"}}",
         "hf_quant_config.json: quantization: quant_algo W4A8_AWQ is not a quantisation of the experts that "
         "tuned tables can express; give --q-type, --q-dtype-a and --q-dtype-w"},
        {"{", "hf_quant_config.json: not a JSON object"},
    };

    make_folder();
    text_file_write(in_folder("config.json"), "{\"hidden_size\": 7168, \"moe_intermediate_size\": 2048, "
                                              "\"n_routed_experts\": 256, \"num_experts_per_tok\": 8}");
    for (size_t i = 0; i < MF_ARRAY_LEN(files); i++) {
        text_file_write(in_folder("hf_quant_config.json"), files[i][0]);
        struct ran r = moefarm("", "csv", "coverage", "--model", folder, "--class", "gfx950/256", "--untuned",
                               in_folder("untuned.csv"), NULL);
        assert_code(r, i == 0 ? 0 : 2);
        assert_says(r.err, files[i][1]);
    }
    struct ran r = moefarm("", "csv", "coverage", "--model", folder, "--class", "gfx950/256", "--untuned",
                           in_folder("untuned.csv"), "--q-type", "No", NULL);
    assert_code(r, 2); /* an unreadable file is no reason to ignore the file */
    ck_assert_int_eq(unlink(in_folder("hf_quant_config.json")), 0);
    ck_assert_int_eq(unlink(in_folder("untuned.csv")), 0);
    ck_assert_int_eq(unlink(in_folder("config.json")), 0);
    remove_folder();
}

MF_TEST(lists_models)
{
    make_folder();
    struct ran r = moefarm("", "csv", "coverage", "--list-models", NULL);
    assert_code(r, 0);
    assert_says(r.out, "deepseek-v3 ");
    assert_says(r.out, "https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/config.json");
    r = moefarm("", "csv", "coverage", "--list-models", "--json", NULL);
    assert_code(r, 0);
    assert_says(r.out, "\"name\":\t\"kimi-k2\"");
    remove_folder();
}

int main(void)
{
    return mf_check_main(NULL);
}
