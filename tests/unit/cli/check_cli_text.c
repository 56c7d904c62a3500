/* cli/: tests event streams, bars, columns, shape patterns, progress, and early returns of commands. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "cli/support/cli.h"
#include "cli/support/plain_output.h"
#include "cli/support/progress.h"
#include "cli/support/shape_arg.h"
#include "cli/support/text_out.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/net/sse.h"
#include "kernels/core/quant.h"
#include "support/mf_check.h"

/* ---- event streams ---- */

struct events {
    char text[1024];
};

static int record_event(void *context, const char *kind, const char *data)
{
    struct events *h = context;
    size_t len = strlen(h->text);

    mf_format(h->text + len, sizeof(h->text) - len, "[%s|%s]", kind, data);
    return strcmp(kind, "stop") == 0 ? -ECANCELED : 0;
}

static const struct sse_case {
    const char *stream, *events, *last_id;
} sse_cases[] = {
    {"event: task\nid: 4\ndata: {}\n\n", "[task|{}]", "4"},
    /* no space after the colon; lines end in CR LF */
    {"event:task\r\nid:5\r\ndata:x\r\n\r\n", "[task|x]", "5"},
    /* lines end in CR; the event has two data lines */
    {"data: a\rdata: b\r\r", "[message|a\nb]", ""},
    {": keep-alive\n\n: again\n\ndata: a\n\n", "[message|a]", ""},
    {"id: 7\n\n", "", "7"}, /* an id without data advances the position for resuming */
    /* an incomplete event does not advance the position */
    {"id: 8\ndata: a\n\nid: 9\ndata: half", "[message|a]", "8"},
    {"event: a\n\ndata: b\n\n", "[message|b]", ""}, /* an event type applies to one event only */
    {"retry: 10\nother: 1\ndata\n\n", "[message|]", ""},
    {"event: a\ndata: 1\n\nevent: b\ndata: 2\n\n", "[a|1][b|2]", ""},
};

/* The parser gets the stream in two parts, once for every split position. */
MF_TEST(sse_streams, .rows = MF_ARRAY_LEN(sse_cases))
{
    const struct sse_case *c = &sse_cases[_i];
    size_t n = strlen(c->stream);

    for (size_t cut = 0; cut <= n; cut++) {
        struct events events = {""};
        struct mf_sse sse;

        mf_sse_init(&sse, record_event, &events);
        ck_assert_int_eq(mf_sse_feed(&sse, c->stream, cut), 0);
        ck_assert_int_eq(mf_sse_feed(&sse, c->stream + cut, n - cut), 0);
        ck_assert_str_eq(events.text, c->events);
        ck_assert_str_eq(sse.last_id, c->last_id);
        mf_sse_release(&sse);
    }
}

MF_TEST(sse_limits)
{
    struct events events = {""};
    struct mf_sse sse;
    char block[4096];
    int r = 0;

    memset(block, 'x', sizeof(block));
    mf_sse_init(&sse, record_event, &events);
    ck_assert_int_eq(mf_sse_feed(&sse, "event: stop\ndata: 1\n\n", 21), -ECANCELED);
    mf_sse_restart(&sse);
    for (size_t i = 0; i <= MF_SSE_EVENT_MAX / sizeof(block) && r == 0; i++)
        r = mf_sse_feed(&sse, block, sizeof(block));
    ck_assert_int_eq(r, -EMSGSIZE);
    mf_sse_release(&sse);
}

/* ---- text ---- */

static const struct bar_case {
    double fraction;
    int width;
    bool utf8;
    const char *expected;
} bar_cases[] = {
    {0, 4, false, "----"},     {1, 4, false, "####"},   {0.5, 4, false, "##--"},    {-1, 4, false, "----"},
    {9, 4, false, "####"},     {NAN, 4, false, "----"}, {0.5, 3, true, "█▌·"},      {1, 2, true, "██"},
    {0.0625, 4, true, "▎···"}, {0.999, 2, false, "##"}, {0.03125, 4, true, "▏···"},
};

MF_TEST(bars, .rows = MF_ARRAY_LEN(bar_cases))
{
    const struct bar_case *c = &bar_cases[_i];
    struct mf_buf b;

    mf_buf_init(&b, 256);
    mf_bar(&b, c->fraction, c->width, c->utf8);
    ck_assert_str_eq(b.data, c->expected);
    ck_assert_uint_eq(mf_text_width(b.data), (size_t)c->width);
    mf_buf_release(&b);
}

static const struct {
    double seconds;
    const char *expected;
} duration_cases[] = {{-3, "0 s"},       {0.4, "0 s"},        {99, "99 s"},
                      {100, "1:40 min"}, {3599, "59:59 min"}, {7500, "2:05 h"}};

MF_TEST(durations, .rows = MF_ARRAY_LEN(duration_cases))
{
    char buf[MF_DURATION_MAX];

    mf_duration(duration_cases[_i].seconds, buf);
    ck_assert_str_eq(buf, duration_cases[_i].expected);
}

static const struct {
    double us;
    const char *expected;
} us_cases[] = {{7.311, "7.31 us"}, {812.4, "812.4 us"}, {4321, "4321 us"}, {12400, "12.40 ms"}, {NAN, "-"}};

MF_TEST(times, .rows = MF_ARRAY_LEN(us_cases))
{
    char buf[MF_US_MAX];

    mf_us(us_cases[_i].us, buf);
    ck_assert_str_eq(buf, us_cases[_i].expected);
}

MF_TEST(columns)
{
    struct mf_columns c;
    struct mf_buf out;

    mf_buf_init(&out, 4096);
    mf_columns_init(&c, 3);
    for (const char *const *cell =
             (const char *const[]){"n", "name", "us", "7", "ä", "1.5", "12", "long", "300.25", NULL};
         *cell; cell++)
        mf_columns_add(&c, *cell);
    mf_columns_print(&c, &out);
    ck_assert_str_eq(out.data, " n  name      us\n"
                               " 7  ä        1.5\n"
                               "12  long  300.25\n");
    mf_columns_release(&c);
    mf_buf_release(&out);
}

MF_TEST(cells_without_value)
{
    static const char expected[] = "-\0-\0-\0-\0first\0"
                                   "7\0"
                                   "12.50";
    struct mf_columns c;

    mf_columns_init(&c, 1);
    mf_columns_add_text(&c, "");
    mf_columns_add_id(&c, 0);
    mf_columns_add_us(&c, 0);
    mf_columns_add_us(&c, NAN);
    mf_columns_add_text(&c, "first");
    mf_columns_add_id(&c, 7);
    mf_columns_add_us(&c, 12.5);
    ck_assert_uint_eq(c.cells.len, sizeof(expected));
    ck_assert_mem_eq(c.cells.data, expected, sizeof(expected));
    mf_columns_release(&c);
}

/* ---- shapes ---- */

#define QWEN_BF16 \
    "2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define QWEN_FP8                                                                                           \
    "4096,384,128,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType." \
    "per_1x128,1,0"

static const struct {
    const char *pattern, *row;
    bool match;
} pattern_cases[] = {
    {"4," QWEN_BF16, "4," QWEN_BF16, true},
    {"4," QWEN_BF16, "8," QWEN_BF16, false},
    {"token=4", "4," QWEN_FP8, true},
    {"token=4,inter_dim=384", "4," QWEN_FP8, true},
    {"token=4,inter_dim=96", "4," QWEN_FP8, false},
    /* per_128x128 is AITER's other name for per_1x128 */
    {"q_type=QuantType.per_128x128", "4," QWEN_FP8, true},
    {"q_type=QuantType.No", "4," QWEN_FP8, false},
    {"use_g1u1=True", "4," QWEN_FP8, true},
    {"form=b1+b2", "4," QWEN_BF16 ",b1+b2", true},
    {"form=b1+b2", "4," QWEN_BF16, false},
    {"4," QWEN_BF16 ",b1", "4," QWEN_BF16 ",b1", true},
    /* a pattern that is a complete row matches only rows with the same form; the row here has another form */
    {"4," QWEN_BF16, "4," QWEN_BF16 ",b1", false},
    {"token=4", "4," QWEN_BF16 ",b1", true},
};

MF_TEST(patterns, .rows = MF_ARRAY_LEN(pattern_cases))
{
    struct mf_shape_pattern p;
    struct mf_shape shape;
    char why[320] = "";

    ck_assert_msg(mf_shape_pattern_parse(pattern_cases[_i].pattern, &p, why, sizeof(why)) == 0, "%s", why);
    ck_assert_int_eq(mf_shape_parse(pattern_cases[_i].row, &shape), 0);
    ck_assert_int_eq(mf_shape_pattern_match(&p, &shape), pattern_cases[_i].match);
}

static const struct {
    const char *pattern, *why;
} bad_patterns[] = {
    {"", "token '': expected"},
    {"4", "1 values; a whole row has twelve"},
    {"tokens=4", "'tokens': unknown column"},
    {"token=x", "token 'x': expected"},
    {"token=4,8", "expected column=value pairs or a whole row"},
    {"1," QWEN_BF16 ",7", "form '7': expected"},
    {"1," QWEN_BF16 ",b1,7", "too many values"},
};

MF_TEST(invalid_patterns, .rows = MF_ARRAY_LEN(bad_patterns))
{
    struct mf_shape_pattern p;
    char why[320] = "";

    ck_assert_int_eq(mf_shape_pattern_parse(bad_patterns[_i].pattern, &p, why, sizeof(why)), -EINVAL);
    ck_assert_msg(strstr(why, bad_patterns[_i].why) != NULL, "'%s' does not contain '%s'", why,
                  bad_patterns[_i].why);
}

MF_TEST(briefs)
{
    struct mf_shape shape;
    char brief[MF_SHAPE_BRIEF_MAX];

    ck_assert_int_eq(mf_shape_parse("4," QWEN_BF16, &shape), 0);
    mf_shape_brief(&shape, brief);
    ck_assert_str_eq(brief, "T4 H2048 I96 E128 k8 bf16");
    ck_assert_int_eq(mf_shape_parse("4," QWEN_FP8, &shape), 0);
    shape.act_type = MF_ACT_GELU;
    shape.use_g1u1 = false;
    shape.doweight_stage1 = true;
    mf_shape_brief_layer_model(&shape, brief);
    ck_assert_str_eq(brief, "H4096 I384 E128 k8 fp8_e4m3fn per_1x128 Gelu g1u0 dw1");
}

/* ---- progress ---- */

#define SHAPE_JSON(token)                                                                                 \
    "{\"token\":" #token ",\"model_dim\":2048,\"inter_dim\":96,\"expert\":128,\"topk\":8,"                \
    "\"act_type\":\"ActivationType.Silu\",\"dtype\":\"torch.bfloat16\",\"q_dtype_a\":\"torch.bfloat16\"," \
    "\"q_dtype_w\":\"torch.bfloat16\",\"q_type\":\"QuantType.No\",\"use_g1u1\":1,\"doweight_stage1\":0}"

static const char tasks_json[] =
    "[{\"id\":1,\"class\":\"cpu-x/"
    "2\",\"state\":\"probing\",\"steps\":100,\"measured\":50,\"shape\":" SHAPE_JSON(
        1) "},{\"id\":2,\"class\":\"cpu-x/"
           "2\",\"state\":\"waiting\",\"steps\":0,\"measured\":0,\"shape\":" SHAPE_JSON(2) "}]";

static void set_up(struct mf_progress *p)
{
    cJSON *tasks = cJSON_Parse(tasks_json);
    cJSON *batch = cJSON_Parse("{\"id\":7,\"state\":\"open\",\"eta_s\":100}");

    ck_assert_ptr_nonnull(tasks);
    mf_progress_set_batch(p, batch);
    ck_assert_int_eq(mf_progress_set_tasks(p, tasks), 0);
    cJSON_Delete(tasks);
    cJSON_Delete(batch);
}

static void event(struct mf_progress *p, const char *kind, const char *text)
{
    cJSON *data = cJSON_Parse(text);

    ck_assert_ptr_nonnull(data);
    mf_progress_event(p, kind, data);
    cJSON_Delete(data);
}

MF_TEST(progress_follows_events)
{
    struct mf_progress p = MF_PROGRESS_INIT;
    struct mf_buf out;

    mf_buf_init(&out, 65536);
    set_up(&p);
    ck_assert_uint_eq(p.n_groups, 1);
    ck_assert_double_eq_tol(mf_task_fraction(&p.tasks[0]), 0.41, 1e-9);
    ck_assert_double_eq_tol(mf_task_fraction(&p.tasks[1]), 0, 1e-9);
    mf_progress_summary(&p, &out);
    ck_assert_str_eq(out.data, "batch 7: 0 of 2 tasks, 50 of 100 steps, 1:40 min to go\n");

    event(&p, "task", "{\"batch\":7,\"task\":1,\"state\":\"done\",\"steps\":100,\"measured\":100}");
    /* a task that the program does not know */
    event(&p, "task", "{\"batch\":7,\"task\":99,\"state\":\"done\"}");
    event(&p, "worker", "{\"worker\":1,\"state\":\"idle\"}");
    mf_buf_clear(&out);
    mf_progress_print_ended(&p, &out);
    ck_assert_str_eq(out.data, ""); /* not printed yet, because the time arrives with the config event */
    event(&p, "config", "{\"batch\":7,\"task\":1,\"us\":411.2,\"winner\":3,\"ties\":[]}");
    event(&p, "task", "{\"batch\":7,\"task\":2,\"state\":\"failed\",\"reason\":\"no family offers it\"}");
    mf_progress_print_ended(&p, &out);
    ck_assert_str_eq(out.data, "task 1  cpu-x/2  T1 H2048 I96 E128 k8 bf16: done, 411.2 us\n"
                               "task 2  cpu-x/2  T2 H2048 I96 E128 k8 bf16: failed: no family offers it\n");
    mf_buf_clear(&out);
    mf_progress_print_ended(&p, &out);
    ck_assert_str_eq(out.data, ""); /* each task is printed only once */
    ck_assert_uint_eq(mf_progress_count(&p, MF_TASK_FAILED), 1);

    ck_assert(!mf_progress_ended(&p));
    event(&p, "batch", "{\"batch\":8,\"state\":\"done\"}");
    ck_assert(!mf_progress_ended(&p));
    event(&p, "batch", "{\"batch\":7,\"state\":\"done\"}");
    ck_assert(mf_progress_ended(&p));

    /* setting the lists again keeps the flags of tasks that were printed */
    set_up(&p);
    ck_assert(p.tasks[0].is_printed);
    mf_buf_release(&out);
    mf_progress_release(&p);
}

MF_TEST(progress_lines_fit)
{
    struct mf_progress p = MF_PROGRESS_INIT;
    struct mf_buf out;

    mf_buf_init(&out, 65536);
    set_up(&p);
    for (int width = 40; width < 160; width += 7) {
        size_t lines = 0;

        mf_buf_clear(&out);
        ck_assert_uint_eq(mf_progress_draw(&p, width, 24, true, &out), 2);
        for (char *line = out.data, *end; (end = strchr(line, '\n')); line = end + 1) {
            *end = '\0';
            ck_assert_uint_le(mf_text_width(line), (size_t)width);
            lines++;
        }
        ck_assert_uint_eq(lines, 2);
    }
    mf_buf_release(&out);
    mf_progress_release(&p);
}

/* With three groups and three lines, the total replaces the finished group. */
MF_TEST(progress_omits_finished_groups)
{
    struct mf_progress p = MF_PROGRESS_INIT;
    struct mf_buf out;

    mf_buf_init(&out, 65536);
    set_up(&p);
    p.groups = reallocarray(p.groups, 3, sizeof(*p.groups));
    p.tasks = reallocarray(p.tasks, 3, sizeof(*p.tasks));
    ck_assert(p.groups && p.tasks);
    for (size_t i = 0; i < 3; i++) {
        p.tasks[i] = (struct mf_task_progress){
            .id = (int64_t)i + 1, .group = i, .state = i == 1 ? MF_TASK_DONE : MF_TASK_PROBING};
        mf_format(p.groups[i].class, sizeof(p.groups[i].class), "cpu-x/2");
        mf_format(p.groups[i].title, sizeof(p.groups[i].title), "group-%zu", i);
    }
    p.n_tasks = p.n_groups = 3;
    ck_assert_uint_eq(mf_progress_draw(&p, 80, 3, false, &out), 3);
    ck_assert_ptr_nonnull(strstr(out.data, "group-0"));
    ck_assert_ptr_null(strstr(out.data, "group-1"));
    ck_assert_ptr_nonnull(strstr(out.data, "group-2"));
    ck_assert_ptr_nonnull(strstr(out.data, "batch 7"));
    mf_buf_clear(&out);
    ck_assert_uint_eq(mf_progress_draw(&p, 80, 4, false, &out), 4);
    ck_assert_ptr_nonnull(strstr(out.data, "group-1"));
    mf_buf_release(&out);
    mf_progress_release(&p);
}

MF_TEST(progress_rejects_invalid_tasks)
{
    struct mf_progress p = MF_PROGRESS_INIT;
    cJSON *tasks = cJSON_Parse("[{\"id\":1,\"shape\":{\"token\":1}}]");

    set_up(&p);
    ck_assert_int_eq(mf_progress_set_tasks(&p, tasks), -EINVAL);
    ck_assert_uint_eq(p.n_tasks, 2); /* the tasks are unchanged */
    cJSON_Delete(tasks);
    mf_progress_release(&p);
}

/* ---- early returns ---- */

static const struct mf_command token = {.name = "token", .arguments = "ROLE NAME", .run = mf_cmd_token};
static const struct mf_command release = {
    .name = "release", .arguments = "ACTION ...", .run = mf_cmd_release};

static const struct early_return {
    const struct mf_command *command;
    const char *words[4];
    int code;
} early_returns[] = {
    {&token, {"token", "--help"}, MF_EXIT_OK},
    {&token, {"token", "one"}, MF_EXIT_USAGE},
    {&release, {"release", "freeze", "--help"}, MF_EXIT_OK},
    {&release, {"release", "freeze", "one"}, MF_EXIT_USAGE},
};

/* Fills the stack frame of the next call with a pattern. The asm statement prevents the compiler from
 * removing it. */
__attribute__((noinline)) static void fill_stack(void)
{
    char where[32768];

    memset(where, 0x5a, sizeof(where));
    __asm__ volatile("" : : "r"(where) : "memory");
}

/* A command that returns early must not release uninitialised variables. */
MF_TEST(commands_return_early, .rows = MF_ARRAY_LEN(early_returns))
{
    const struct early_return *c = &early_returns[_i];
    struct mf_cli cli = {.url = "", .token_file = "", .ca = ""};
    char *argv[4] = {NULL};
    int n = 0;

    for (; n < 4 && c->words[n]; n++)
        argv[n] = (char *)(uintptr_t)c->words[n];
    fill_stack();
    ck_assert_int_eq(c->command->run(&cli, c->command, n, argv), c->code);
}

static const struct {
    const char *text, *plain;
    size_t used; /* 0: all */
} plain_texts[] = {
    {"a\tb\n", "a\tb\n", 0},
    {"\x1b[31mred\x07\r\x7f", "?[31mred???", 0},
    {"\xc2\x9b"
     "31m",
     "??31m", 0},
    {"\xc2\xa0\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc2\xa0\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", 0},
    {"a\x9b\xff"
     "b",
     "a??b", 0},
    {"\xe2(\xa1", "?(?", 0},
    {"ab\xe2\x82", "ab", 2}, /* the character is complete in the next call */
    {"ab\xc2", "ab", 2},
};

MF_TEST(control_characters, .rows = MF_ARRAY_LEN(plain_texts))
{
    const char *text = plain_texts[_i].text;
    char out[64] = "";
    size_t used = mf_plain_text(text, strlen(text), out);
    ck_assert_uint_eq(used, plain_texts[_i].used ? plain_texts[_i].used : strlen(text));
    ck_assert_str_eq(out, plain_texts[_i].plain);
}

int main(void)
{
    return mf_check_main(NULL);
}
