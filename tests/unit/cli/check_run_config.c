/* moefarm run-config on the CPU: tests rows that pass, that are slower than the time in the table, that are
 * wrong, and that are refused. */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/family.h"
#include "support/cpu_device.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"
#include "support/tuned_table.h"

#define SHAPE "4," LAYER
#define LAYER "256,128,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"

/* Finds steps that cover the whole layer, each of which is a complete pipeline. Also finds steps that form a
 * pipeline as a chain. */
struct finder {
    struct mf_offer offer;
    mf_ops all;
    char name[MF_FAMILY_NAME_MAX + MF_STEP_NAME_MAX];
    /* a step for a w1 in which the rows of gate and up alternate */
    char alternating[MF_FAMILY_NAME_MAX + MF_STEP_NAME_MAX];
    char chain[4][MF_FAMILY_NAME_MAX + MF_STEP_NAME_MAX]; /* one step for each entry of chain_parts */
};

/* The layer as a chain of steps: covered ops and output tensor of each step. */
static const struct {
    const char *ops;
    enum mf_tensor gives;
} chain_parts[4] = {{"sort", MF_TENSOR_SORTED},
                    {"gather+gemm1+act", MF_TENSOR_H},
                    {"gemm2", MF_TENSOR_Z},
                    {"weight+combine", MF_TENSOR_Y}};

static int record_step(struct mf_offer *o, const struct mf_step *step)
{
    struct finder *f = (struct finder *)o;

    if (step->covers == f->all && !f->name[0])
        mf_format(f->name, sizeof(f->name), "%s:%s", step->family, step->name);
    if (step->covers == f->all && strstr(step->name, "_gu16"))
        mf_format(f->alternating, sizeof(f->alternating), "%s:%s", step->family, step->name);
    for (size_t i = 0; i < MF_ARRAY_LEN(chain_parts); i++) {
        char ops[MF_OPS_TEXT_MAX];
        mf_ops_print(step->covers, ops);
        if (!f->chain[i][0] && strcmp(ops, chain_parts[i].ops) == 0 &&
            step->gives[0].tensor == chain_parts[i].gives && (step->block_m == 8 || step->block_m == 0))
            mf_format(f->chain[i], sizeof(f->chain[i]), "%s:%s", step->family, step->name);
    }
    return 0;
}

static char pipeline[MF_FAMILY_NAME_MAX + MF_STEP_NAME_MAX],
    alternating[MF_FAMILY_NAME_MAX + MF_STEP_NAME_MAX], chain[4 * (MF_FAMILY_NAME_MAX + MF_STEP_NAME_MAX)],
    model_text[128];

static void find_pipeline(void)
{
    struct mf_device *device = open_cpu();
    struct mf_shape shape;
    struct finder f = {.offer = {record_step, mf_offer_ignore_rejection}};

    ck_assert_int_eq(mf_shape_parse(SHAPE, &shape), 0);
    f.all = mf_layer_ops(&shape);
    ck_assert_int_eq(mf_enumerate(&device->info, &shape, NULL, &f.offer), 0);
    ck_assert_msg(f.name[0] != '\0', "no family offers the whole layer of " SHAPE);
    ck_assert_msg(f.alternating[0] != '\0', "no family offers the whole layer with gate and up alternating");
    mf_format(pipeline, sizeof(pipeline), "%s", f.name);
    mf_format(alternating, sizeof(alternating), "%s", f.alternating);
    mf_format(chain, sizeof(chain), "%s|%s|%s|%s", f.chain[0], f.chain[1], f.chain[2], f.chain[3]);
    mf_format(model_text, sizeof(model_text), "%s", device->info.model);
    mf_device_close(device);
    make_folder();
}

static void write_row(const char *us, const char *names, const char *form)
{
    char text[4096] = TABLE_HEADER;
    add_row(text, sizeof(text), class_text, SHAPE, us, names, form);
    text_file_write(in_folder("table.csv"), text);
}

static const struct {
    const char *us;
    /* NULL: the step of the whole layer; "gu": the step with alternating gate and up; "chain": the chain of
     * steps */
    const char *names;
    const char *option, *value;
    int code;
    const char *out, *err;
    const char *form;
} cases[] = {
    {"1000.0", NULL, "--rounds", "3", 0, "OK       T4 H256 I128 E8 k2 bf16", "", NULL},
    {"0.001", NULL, "--rounds", "3", 1, "SLOWER   T4 H256", "", NULL},
    {"0.001", NULL, "--rounds", "3", 1, ", OK is 0.001 to 1e+03\n", "", NULL},
    {"1000000000.0", NULL, "--rounds", "3", 1, "FASTER   T4 H256", "", NULL},
    {"1000000000.0", NULL, "--rounds", "3", 1, ", OK is 0.001 to 1e+03\n", "", NULL},
    {"1000.0", NULL, "--rounds", "3", 0, "1 OK, 0 not OK; OK is a ratio of 0.001 to 1e+03\n", "", NULL},
    {"0.001", NULL, "--slack", "1e12", 0, "1 rows: 1 OK, 0 not", "", NULL},
    {"1000.0", NULL, "--err-ratio", "-1", 1, "WRONG    T4 H256", "", NULL}, /* no result meets this limit */
    {"1000.0", NULL, "--json", NULL, 0, "\"verdict\":\t\"OK\"", "", NULL},
    {"1000.0", "move:sort_m8", "--rounds", "3", 1, "REFUSED  T4 H256 I128 E8 k2 bf16", "", NULL},
    {"1000.0", "one:nothing", "--rounds", "3", 1, "family one_stage offers no step nothing", "", NULL},
    {"1000.0", NULL, "--routing", "skewed", 2, "", "routing profile 'skewed': unknown", NULL},
    {"1000.0", NULL, "--rounds", "3", 0, "OK       T4 H256 I128 E8 k2 bf16 limit:1.5+b1+b2", "",
     "b2+limit:1.5+b1"},
    {"1000.0", NULL, "--rounds", "3", 2, "", "form", "b1+b1"},
    {"1000.0", "gu", "--rounds", "3", 0, "OK       T4 H256 I128 E8 k2 bf16 b1", "", "b1"},
    {"1000.0", "gu", "--rounds", "3", 0, "OK       T4 H256 I128 E8 k2 bf16 gate_up:tiled", "",
     "gate_up:tiled"},
    {"1000.0", "gu", "--rounds", "3", 1, "gate and up of w1 are stored interleaved", "",
     "gate_up:interleaved"},
    {"1000.0", NULL, "--rounds", "3", 0, "OK       T4 H256 I128 E8 k2 bf16 ep:4/16", "", "ep:4/16"},
    {"1000.0", "chain", "--rounds", "3", 0, "OK       T4 H256 I128 E8 k2 bf16 ep:8/16", "", "ep:8/16"},
    {"1000.0", "chain", "--rounds", "3", 0, "OK       T4 H256 I128 E8 k2 bf16 b2", "", "b2"},
};

MF_TEST(run_config, .rows = MF_ARRAY_LEN(cases))
{
    struct ran r;

    const char *names = !cases[_i].names                        ? pipeline
                        : strcmp(cases[_i].names, "gu") == 0    ? alternating
                        : strcmp(cases[_i].names, "chain") == 0 ? chain
                                                                : cases[_i].names;
    write_row(cases[_i].us, names, cases[_i].form ? cases[_i].form : "");
    r = moefarm("", "run-config", "--slack", "1000", in_folder("table.csv"), cases[_i].option,
                cases[_i].value, NULL);
    assert_code(r, cases[_i].code);
    assert_says(r.out, cases[_i].out);
    assert_says(r.err, cases[_i].err);
}

/* A row with the old name of a family runs, and the output has the current name. */
MF_TEST(opens_old_family_names)
{
    char old[sizeof(pipeline)];
    const char *step = strchr(pipeline, ':');
    struct ran r;

    ck_assert_ptr_nonnull(step);
    ck_assert(strncmp(pipeline, "one_stage:", 10) == 0);
    mf_format(old, sizeof(old), "one%s", step);
    write_row("1000.0", old, "");
    r = moefarm("", "run-config", "--slack", "1000", in_folder("table.csv"), "--rounds", "3", "--json", NULL);
    assert_code(r, 0);
    assert_says(r.out, "\"verdict\":\t\"OK\"");
    assert_says(r.out, pipeline);
}

/* The output repeats why the farm did not accept a row's time. */
MF_TEST(says_that_a_time_is_unstable)
{
    char text[4096] = TUNED_COLUMNS OWN_COLUMNS ",form,unstable\n";
    struct ran r;

    add_row(text, sizeof(text), class_text, SHAPE, "1000.0", pipeline, ",it scatters");
    text_file_write(in_folder("table.csv"), text);
    r = moefarm("", "run-config", "--slack", "1000", in_folder("table.csv"), "--rounds", "3", NULL);
    assert_code(r, 0);
    assert_says(r.out, "the table's time is unstable: it scatters\n");
}

/* A row of a foreign family is skipped and reported. The other rows run. */
MF_TEST(skips_foreign_rows)
{
    struct ran r;

    write_rows(in_folder("table.csv"), class_text,
               TUNED({SHAPE, "1000.0", pipeline}, {"5," LAYER, "1.0", "python:layer"}));
    r = moefarm("", "run-config", "--slack", "1000", in_folder("table.csv"), NULL);
    assert_code(r, 0);
    assert_says(r.err, "table.csv:3: skipped: ");
    assert_says(r.out, "1 rows: 1 OK, 0 not OK; OK is a ratio of 0.001 to 1e+03; 1 skipped");
    write_row("1.0", "python:layer", "");
    r = moefarm("", "run-config", "--slack", "1000", in_folder("table.csv"), NULL);
    assert_code(r, 2);
    assert_says(r.err, "table.csv: no row of this device's class ");
}

/* Without a table, the command checks the pipelines that production uses for shapes without a row. It prints
 * their times without a verdict. */
MF_TEST(shapes_alone)
{
    struct ran r;

    text_file_write(in_folder("shapes.csv"),
                    SHAPE_COLUMNS ",gfx,cu_num\n" SHAPE ",,\n3," LAYER ",,\n4," LAYER ",gfx942,304\n");
    r = moefarm("", "run-config", "--shapes", in_folder("shapes.csv"), "--rounds", "3", NULL);
    assert_code(r, 0);
    assert_says(r.out, "OK       T4 H256 I128 E8 k2 bf16");
    assert_says(r.out, "OK       T3 H256 I128 E8 k2 bf16");
    const char *pipeline_of = strchr(strstr(r.out, "OK       T4"), '\n') + 1; /* the line after the match */
    ck_assert_msg(strncmp(pipeline_of, "         ", 9) == 0 &&
                      memchr(pipeline_of, ':', strcspn(pipeline_of, "\n")) != NULL,
                  "%s", r.out);
    assert_says(r.out, "2 rows: 2 OK, 0 not");
    r = moefarm("", "run-config", "--shapes", in_folder("shapes.csv"), in_folder("table.csv"), NULL);
    assert_code(r, 2);
    assert_says(r.err, "expected either TABLE or --shapes FILE");
    r = moefarm("", "run-config", NULL);
    assert_code(r, 2);
    assert_says(r.err, "expected either TABLE or --shapes FILE");
    text_file_write(in_folder("shapes.csv"), "token,model_dim\n4,256\n");
    r = moefarm("", "run-config", "--shapes", in_folder("shapes.csv"), NULL);
    assert_code(r, 2);
    assert_says(r.err, "--shapes: the header has no column");
}

MF_TEST(another_class)
{
    struct ran r;

    mf_format(class_text, sizeof(class_text), "gfx942,304");
    write_row("10.0", pipeline, "");
    r = moefarm("", "run-config", "--slack", "1000", in_folder("table.csv"), NULL);
    assert_code(r, 2);
    assert_says(r.err, "no row of this device's class");
}

/* One device class contains several device models. A row that was tuned on another model is run and reported.
 */
MF_TEST(another_model)
{
    char text[4096] = TABLE_HEADER, expected[256];
    char *model;
    struct ran r;

    add_row(text, sizeof(text), class_text, SHAPE, "1000.0", pipeline, "");
    text_file_write(in_folder("table.csv"), text);
    r = moefarm("", "run-config", "--slack", "1000", in_folder("table.csv"), "--json", NULL);
    assert_code(r, 0);
    mf_format(expected, sizeof(expected),
              "table.csv: 1 of 1 rows were tuned on another device model (cpu) than this one (%s)",
              model_text);
    assert_says(r.err, expected);
    assert_says(r.out, "\"model\":\t\"cpu\"");
    model = strstr(text, ",cpu,r1,");
    ck_assert_ptr_nonnull(model);
    mf_format(expected, sizeof(expected), ",%s,%s", model_text, model + strlen(",cpu,"));
    mf_format(model, sizeof(text) - (size_t)(model - text), "%s", expected);
    text_file_write(in_folder("table.csv"), text);
    r = moefarm("", "run-config", "--slack", "1000", in_folder("table.csv"), NULL);
    assert_code(r, 0);
    ck_assert_str_eq(r.err, "");
}

/* Each row gets its verdict, and a wrong row also the message of the gate. A wrong or refused row does not
 * stop the other rows. */
MF_TEST(known_verdicts)
{
    struct ran r;

    write_rows(in_folder("table.csv"), class_text,
               TUNED({"4," LAYER, "1000.0", "rows:right"}, {"8," LAYER, "1000.0", "rows:wrong"},
                     {"16," LAYER, "0.001", "rows:right"}, {"32," LAYER, "1000.0", "rows:gone"}));
    r = moefarm("", "run-config", "--slack", "1000", in_folder("table.csv"), "--rounds", "3", "--family-so",
                ROWS_SO, NULL);
    assert_code(r, 1);
    assert_says(r.out, "OK       T4 H256");
    assert_says(r.out, "WRONG    T8 H256");
    assert_says(r.out, "row: row 0 of y has relative error");
    assert_says(r.out, "SLOWER   T16 H256");
    assert_says(r.out, "REFUSED  T32 H256");
    assert_says(r.out, "rows offers no step gone");
    /* a row that looks slower is timed again after all other rows, and is printed once; JSON keeps the order
     * of the table */
    ck_assert(strstr(r.out, "SLOWER   T16") > strstr(r.out, "REFUSED  T32"));
    ck_assert_ptr_null(strstr(strstr(r.out, "SLOWER") + 1, "SLOWER"));
    assert_says(r.out, "4 rows: 1 OK, 3 not");
    r = moefarm("", "run-config", "--slack", "1000", in_folder("table.csv"), "--rounds", "3", "--family-so",
                ROWS_SO, "--json", NULL);
    const char *slower = strstr(r.out, "\"SLOWER\""), *refused = strstr(r.out, "\"REFUSED\"");
    ck_assert_msg(slower && refused && slower < refused, "%s", r.out);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 120, .setup = find_pipeline, .teardown = remove_folder});
}
