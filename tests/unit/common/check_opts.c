#include "common/base/opts.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

static const char usage[] = "prog [options] FILE…\n\nDoes what a test needs.";

static bool quiet, verify, flag, no_net;
static int64_t port, any, unset;
static double ratio;
static const char *listen_at, *empty, *untune_file, *profile, *run_config;
static const char *families[2];
static struct mf_opt_list list;

/* clang-format off */
static const struct mf_opt opts[] = {
    {"listen",      MF_OPT_TEXT,   &listen_at,   "ADDRESS", "address (LISTEN; default: 127.0.0.1)", 0, 0},
    {"port",        MF_OPT_INT,    &port,        "NUMBER",  "TCP port", 1, 65535},
    {"any",         MF_OPT_INT,    &any,         NULL,      "any integer", 0, 0},
    {"err-ratio",   MF_OPT_DOUBLE, &ratio,       "SHARE",   "maximum mismatch ratio", 0, 0},
    {"quiet",       MF_OPT_BOOL,   &quiet,       NULL,      "no output", 0, 0},
    {"verify",      MF_OPT_BOOL,   &verify,      NULL,
     "check every step against the reference before its time is kept, which slows down "
     "the probe", 0, 0},
    {"empty",       MF_OPT_TEXT,   &empty,       "TEXT",    NULL, 0, 0},
    {"an-option-of-a-very-long-name", MF_OPT_BOOL, &flag, NULL, "printed on a separate line", 0, 0},
    {"i",           MF_OPT_TEXT,   &untune_file, "FILE",    NULL, 0, 0},
    {"untune_file", MF_OPT_TEXT,   &untune_file, "FILE",    "the shapes", 0, 0},
    {"o2",          MF_OPT_TEXT,   &profile,     "FILE",    "all results", 0, 0},
    {"profile_file", MF_OPT_TEXT,  &profile,     "FILE",    NULL, 0, 0},
    {"run_config",  MF_OPT_OPTIONAL, &run_config, "CSV",    "run only", 0, 0},
    {"no-net",      MF_OPT_BOOL,   &no_net,      NULL,      "disable the network", 0, 0},
    {"unset",       MF_OPT_INT,    &unset,       "N",       "timeout in seconds", 0, 9},
    {"family-so",   MF_OPT_LIST,   &list,        "FILE",    "shared object (repeatable)", 0, 0},
};
/* clang-format on */

static void set_defaults(void)
{
    quiet = flag = no_net = false;
    unset = -1;
    profile = run_config = NULL;
    verify = true;
    port = 8080;
    any = -3;
    ratio = 0.1;
    listen_at = "127.0.0.1";
    empty = NULL;
    untune_file = "";
    list = (struct mf_opt_list){.values = families, .max = MF_ARRAY_LEN(families)};
}

#define WORDS_MAX 8

/* Parses a NULL-terminated list of arguments, preceded by argv[0]. */
static int parse(const char *const *words, int *ret_rest)
{
    static char program[] = "/usr/bin/prog";
    static char copies[WORDS_MAX][64];
    char *argv[WORDS_MAX + 2] = {program};
    int argc = 1;
    for (; words[argc - 1]; argc++) {
        snprintf(copies[argc - 1], sizeof(copies[0]), "%s", words[argc - 1]);
        argv[argc] = copies[argc - 1];
    }
    set_defaults();
    return mf_opts_parse(usage, opts, MF_ARRAY_LEN(opts), argc, argv, ret_rest);
}

/* Redirects the stream `fd` to a temporary file. Each test runs in its own process, so other tests are not
 * affected. */
static FILE *capture(int fd)
{
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    fflush(NULL);
    ck_assert_int_ge(dup2(fileno(file), fd), 0);
    return file;
}

static const char *captured(FILE *file)
{
    static char text[8192];
    fflush(NULL);
    rewind(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    return text;
}

MF_TEST(defaults_without_arguments)
{
    int rest = -1;
    ck_assert_int_eq(parse((const char *const[]){NULL}, &rest), 0);
    ck_assert_int_eq(rest, 1);
    ck_assert_str_eq(listen_at, "127.0.0.1");
    ck_assert_int_eq(port, 8080);
    ck_assert_double_eq(ratio, 0.1);
    ck_assert(!quiet && verify);
}

static const char *const value_forms[][WORDS_MAX] = {
    {"--port", "1", "--listen", "::1", "--err-ratio", "-2.5e-1", "--quiet", NULL},
    {"--port=1", "--listen=::1", "--err-ratio=-0.25", "--quiet", NULL},
    {"-port", "1", "-listen=::1", "-err-ratio=-.25", "-quiet", NULL},
    {"--port=65535", "--quiet", "--no-quiet", "--quiet", "--port=1", "--listen=::1", "--err-ratio=-.25",
     NULL},
};

MF_TEST(value_spellings, .rows = MF_ARRAY_LEN(value_forms))
{
    int rest = -1, n = 0;
    while (value_forms[_i][n])
        n++;
    ck_assert_int_eq(parse(value_forms[_i], &rest), 0);
    ck_assert_int_eq(rest, n + 1);
    ck_assert_int_eq(port, 1);
    ck_assert_str_eq(listen_at, "::1");
    ck_assert_double_eq(ratio, -0.25);
    ck_assert(quiet && verify);
}

MF_TEST(no_prefix_clears_a_bool)
{
    int rest;
    ck_assert_int_eq(parse((const char *const[]){"--no-verify", "-no-quiet", NULL}, &rest), 0);
    ck_assert(!quiet && !verify);
}

MF_TEST(values_with_dashes_and_equals_signs)
{
    int rest;
    ck_assert_int_eq(
        parse((const char *const[]){"--listen", "--port", "--any", "-9223372036854775808", NULL}, &rest), 0);
    ck_assert_str_eq(listen_at, "--port");
    ck_assert_int_eq(any, INT64_MIN);
    ck_assert_int_eq(parse((const char *const[]){"--listen=a=b", "--empty=", NULL}, &rest), 0);
    ck_assert_str_eq(listen_at, "a=b");
    ck_assert_pstr_eq(empty, "");
}

MF_TEST(single_letter_option)
{
    int rest;
    ck_assert_int_eq(parse((const char *const[]){"-i", "shapes.csv", NULL}, &rest), 0);
    ck_assert_str_eq(untune_file, "shapes.csv");
}

/* clang-format off */
static const struct {
    const char *words[WORDS_MAX];
    const char *untune_file, *profile, *run_config;
    bool quiet;
} spelling_cases[] = {
    {{"--untune-file", "a", NULL},                    "a", NULL, NULL, false},
    {{"-untune_file=a", "-o2", "b", NULL},            "a", "b",  NULL, false},
    {{"--profile-file", "b", NULL},                   "",  "b",  NULL, false},
    {{"--run_config", NULL},                          "",  NULL, "",   false},
    {{"--run-config", "t.csv", "--quiet", NULL},      "",  NULL, "t.csv", true},
    {{"--run_config=-", NULL},                        "",  NULL, "-",  false},
    /* an option with an optional value does not take the next option as its value */
    {{"--run_config", "--quiet", NULL},               "",  NULL, "",   true},
};
/* clang-format on */

MF_TEST(option_aliases, .rows = MF_ARRAY_LEN(spelling_cases))
{
    const char *const *words = spelling_cases[_i].words;
    int rest = -1, n = 0;
    while (words[n])
        n++;
    ck_assert_int_eq(parse(words, &rest), 0);
    ck_assert_int_eq(rest, n + 1);
    ck_assert_str_eq(untune_file, spelling_cases[_i].untune_file);
    ck_assert_pstr_eq(profile, spelling_cases[_i].profile);
    ck_assert_pstr_eq(run_config, spelling_cases[_i].run_config);
    ck_assert_int_eq(quiet, spelling_cases[_i].quiet);
}

static const char *const list_forms[][WORDS_MAX] = {
    {"--family-so", "a", "--family-so", "--b", NULL},
    {"--family-so=a", "--quiet", "--family-so=--b", NULL},
    {"-family-so", "a", "--listen", "--family-so", "--family_so", "--b", NULL},
};

/* A list takes its values in every spelling of the option, and no other word. */
MF_TEST(repeated_options, .rows = MF_ARRAY_LEN(list_forms))
{
    int rest;
    ck_assert_int_eq(parse(list_forms[_i], &rest), 0);
    ck_assert_int_eq(list.n, 2);
    ck_assert_str_eq(families[0], "a");
    ck_assert_str_eq(families[1], "--b");
}

static const struct {
    const char *words[WORDS_MAX];
    int rest;
} ends[] = {
    {{"file", "--port", "x", NULL}, 1},     {{"--quiet", "file", "--unknown", NULL}, 2},
    {{"--", "--unknown", NULL}, 2},         {{"--quiet", "--", NULL}, 3},
    {{"-", "--unknown", NULL}, 1},          {{"", "--unknown", NULL}, 1},
    {{"--port", "5", "--", "--", NULL}, 4},
};

MF_TEST(first_positional_argument_ends_options, .rows = MF_ARRAY_LEN(ends))
{
    int rest = -1;
    ck_assert_int_eq(parse(ends[_i].words, &rest), 0);
    ck_assert_int_eq(rest, ends[_i].rest);
}

/* clang-format off */
static const struct {
    const char *words[WORDS_MAX];
    const char *message;
} errors[] = {
    {{"--prot", "5", NULL},        "unknown option --prot; did you mean --port? (--help lists all)\n"},
    {{"--prot=5", NULL},           "unknown option --prot; did you mean --port? (--help lists all)\n"},
    {{"--untune-fil=x", NULL},
     "unknown option --untune-fil; did you mean --untune_file? (--help lists all)\n"},
    {{"--unset=-1", NULL},         "--unset: '-1' is not an integer from 0 to 9\n"},
    {{"--something", NULL},        "unknown option --something (--help lists all)\n"},
    {{"--no-port", NULL},          "unknown option --no-port; did you mean --port? (--help lists all)\n"},
    {{"--no-such", NULL},          "unknown option --no-such (--help lists all)\n"},
    {{"-x", NULL},                 "unknown option -x (--help lists all)\n"},
    {{"--=5", NULL},               "unknown option -- (--help lists all)\n"},
    {{"--port", NULL},             "--port needs a value: --port NUMBER\n"},
    {{"--any", NULL},              "--any needs a value: --any VALUE\n"},
    {{"-i", NULL},                 "-i needs a value: -i FILE\n"},
    {{"--port", "abc", NULL},      "--port: 'abc' is not an integer from 1 to 65535\n"},
    {{"--port=0", NULL},           "--port: '0' is not an integer from 1 to 65535\n"},
    {{"--port=65536", NULL},       "--port: '65536' is not an integer from 1 to 65535\n"},
    {{"--port=", NULL},            "--port: '' is not an integer from 1 to 65535\n"},
    {{"--any=1.5", NULL},          "--any: '1.5' is not an integer\n"},
    {{"--err-ratio=5%", NULL},     "--err-ratio: '5%' is not a number\n"},
    {{"--quiet=1", NULL},          "--quiet takes no value; write --quiet or --no-quiet\n"},
    {{"--family-so", NULL},        "--family-so needs a value: --family-so FILE\n"},
    {{"--family-so=a", "--family-so=b", "--family-so=c", NULL}, "--family-so c: more than 2 values\n"},
    {{"--no-quiet=1", NULL},       "--quiet takes no value; write --quiet or --no-quiet\n"},
};
/* clang-format on */

MF_TEST(error_messages, .rows = MF_ARRAY_LEN(errors))
{
    FILE *err = capture(STDERR_FILENO);
    int rest = -1;
    ck_assert_int_eq(parse(errors[_i].words, &rest), -EINVAL);
    ck_assert_int_eq(rest, -1);
    ck_assert_str_eq(captured(err), errors[_i].message);
}

static const char help[] =
    "usage: prog [options] FILE…\n"
    "\n"
    "Does what a test needs.\n"
    "\n"
    "options:\n"
    "  --listen ADDRESS          address (LISTEN; default: 127.0.0.1)\n"
    "  --port NUMBER             TCP port (default: 8080)\n"
    "  --any VALUE               any integer (default: -3)\n"
    "  --err-ratio SHARE         maximum mismatch ratio (default: 0.1)\n"
    "  --[no-]quiet              no output\n"
    "  --[no-]verify             check every step against the reference before its time is\n"
    "                            kept, which slows down the probe (default: on)\n"
    "  --empty TEXT\n"
    "  --[no-]an-option-of-a-very-long-name\n"
    "                            printed on a separate line\n"
    "  -i, --untune_file FILE    the shapes\n"
    "  -o2, --profile_file FILE  all results\n"
    "  --run_config [CSV]        run only\n"
    "  --no-net                  disable the network\n"
    "  --unset N                 timeout in seconds\n"
    "  --family-so FILE          shared object (repeatable)\n"
    "  --help                    print this and exit\n"
    "  --version                 print the version and exit\n";

static const char *const help_words[][WORDS_MAX] = {{"--help", NULL},
                                                    {"-h", NULL},
                                                    {"--quiet", "--port=5", "--help", "x", NULL},
                                                    {"--no-such", "-help", NULL}};

MF_TEST(help_text, .rows = MF_ARRAY_LEN(help_words))
{
    FILE *out = capture(STDOUT_FILENO);
    int rest;
    ck_assert_int_eq(parse(help_words[_i], &rest), 1);
    ck_assert_str_eq(captured(out), help);
}

MF_TEST(version_text)
{
    FILE *out = capture(STDOUT_FILENO);
    int rest;
    ck_assert_int_eq(parse((const char *const[]){"--version", NULL}, &rest), 1);
    ck_assert_str_eq(captured(out), "prog " MF_VERSION "\n");
}

int main(void)
{
    return mf_check_main(NULL);
}
