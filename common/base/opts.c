#include "common/base/opts.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

/* maximum width of the left column of --help; the help text of a wider option starts on the next line */
#define LEFT_MAX      28
#define HELP_WIDTH    90
#define LEFT_TEXT_MAX 160

static const struct mf_opt builtin_opts[] = {
    {.name = "help", .type = MF_OPT_BOOL, .help = "print this and exit"},
    {.name = "version", .type = MF_OPT_BOOL, .help = "print the version and exit"},
};

/* One-letter names, optionally with a digit ("-o2"), are shown with one dash. */
static const char *dashes(const struct mf_opt *o)
{
    bool is_letter = o->name[1] == '\0' || (isdigit((unsigned char)o->name[1]) && o->name[2] == '\0');
    return is_letter ? "-" : "--";
}

static bool has_value(const struct mf_opt *o)
{
    return o->type != MF_OPT_BOOL;
}

static bool is_builtin(const struct mf_opt *o)
{
    return o->value == NULL;
}

static const char *argument_of(const struct mf_opt *o)
{
    return o->argument ? o->argument : "VALUE";
}

/* Returns how many rows, from opts[0] on, set the same value. These rows are the spellings of one option. */
static size_t count_spellings(const struct mf_opt *opts, size_t n)
{
    size_t i = 1;
    while (i < n && !is_builtin(&opts[0]) && opts[i].value == opts[0].value)
        i++;
    return i;
}

/* True if --help shows a "no-" form of the option. Every bool has this form, unless its name has one letter
 * or starts with "no-". */
static bool shows_no(const struct mf_opt *o)
{
    return !has_value(o) && !is_builtin(o) && strlen(o->name) > 1 && strncmp(o->name, "no-", 3) != 0;
}

/* Formats "--name VALUE", "-n, --[no-]name" or "--name [VALUE]" for an option with n spellings. */
static void print_left(const struct mf_opt *o, size_t n, char *buf, size_t cap)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        mf_format(buf + len, cap - len, "%s%s%s%s", i == 0 ? "  " : ", ", dashes(&o[i]),
                  shows_no(&o[i]) ? "[no-]" : "", o[i].name);
        len += strlen(buf + len);
    }
    if (has_value(o))
        mf_format(buf + len, cap - len, o->type == MF_OPT_OPTIONAL ? " [%s]" : " %s", argument_of(o));
}

static const char *help_of(const struct mf_opt *o, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (o[i].help)
            return o[i].help;
    }
    return "";
}

/* Formats " (default: 8)", or "" if there is no default to show or the help text already states the default.
 */
static void print_default(const struct mf_opt *o, char *buf, size_t cap)
{
    buf[0] = '\0';
    if (is_builtin(o) || (o->help && strstr(o->help, "default: ")))
        return;
    switch (o->type) {
    case MF_OPT_BOOL:
        mf_format(buf, cap, "%s", *(const bool *)o->value ? " (default: on)" : "");
        break;
    case MF_OPT_INT: {
        /* A default outside the range means "not set" */
        int64_t value = *(const int64_t *)o->value;
        if ((o->min == 0 && o->max == 0) || (value >= o->min && value <= o->max))
            mf_format(buf, cap, " (default: %" PRId64 ")", value);
        break;
    }
    case MF_OPT_DOUBLE:
        mf_format(buf, cap, " (default: %g)", *(const double *)o->value);
        break;
    case MF_OPT_OPTIONAL:
    case MF_OPT_TEXT: {
        const char *text = *(const char *const *)o->value;
        if (text && *text)
            mf_format(buf, cap, " (default: %s)", text);
        break;
    }
    case MF_OPT_LIST:
        break;
    }
}

/* Prints a text from column `indent` on and breaks its lines before column HELP_WIDTH. */
static void print_wrapped(FILE *out, const char *text, int indent)
{
    int column = indent;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column > indent && column + 1 + word > HELP_WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", word, text);
        column += word;
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static int left_width(const struct mf_opt *opts, size_t n)
{
    char left[LEFT_TEXT_MAX];
    int width = 0;
    for (size_t i = 0, same; i < n; i += same) {
        same = count_spellings(opts + i, n - i);
        print_left(opts + i, same, left, sizeof(left));
        if (strlen(left) <= LEFT_MAX)
            width = MF_MAX(width, (int)strlen(left));
    }
    return width;
}

/* Prints one option. n: number of its spellings. */
static void print_option(FILE *out, const struct mf_opt *o, size_t n, int width)
{
    char left[LEFT_TEXT_MAX], text[1024], value[256];
    print_left(o, n, left, sizeof(left));
    int len = (int)strlen(left);
    print_default(o, value, sizeof(value));
    mf_format(text, sizeof(text), "%s%s", help_of(o, n), value);
    if (*text == '\0') {
        fprintf(out, "%s\n", left);
        return;
    }
    if (len > width)
        fprintf(out, "%s\n%*s", left, width + 2, "");
    else
        fprintf(out, "%-*s", width + 2, left);
    print_wrapped(out, text, width + 2);
}

void mf_opts_help(FILE *out, const char *usage, const struct mf_opt *opts, size_t n)
{
    int width = left_width(opts, n);
    width = MF_MAX(width, left_width(builtin_opts, MF_ARRAY_LEN(builtin_opts)));
    fprintf(out, "usage: %s\n\noptions:\n", usage);
    for (size_t i = 0, same; i < n; i += same) {
        same = count_spellings(opts + i, n - i);
        print_option(out, &opts[i], same, width);
    }
    for (size_t i = 0; i < MF_ARRAY_LEN(builtin_opts); i++)
        print_option(out, &builtin_opts[i], 1, width);
}

/* Compares names; '-' and '_' are equal. */
static bool same_name(const char *a, const char *b, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (a[i] != b[i] && !((a[i] == '-' || a[i] == '_') && (b[i] == '-' || b[i] == '_')))
            return false;
    }
    return true;
}

static const struct mf_opt *find_in(const struct mf_opt *opts, size_t n, const char *name, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(opts[i].name) == len && same_name(opts[i].name, name, len))
            return &opts[i];
    }
    return NULL;
}

/* Returns the known option with the most similar name, or NULL if no name is similar. */
static const struct mf_opt *nearest(const struct mf_opt *opts, size_t n, const char *name, size_t len)
{
    const struct mf_opt *best = NULL;
    size_t best_distance = len < 2 ? 0 : len < 4 ? 2 : 4; /* only smaller distances count */
    for (size_t i = 0; i < n; i++) {
        size_t d = mf_edit_distance(name, len, opts[i].name, strlen(opts[i].name));
        if (d < best_distance) {
            best_distance = d;
            best = &opts[i];
        }
    }
    return best;
}

/* One argv word that starts with a dash. */
struct word {
    const char *text;
    const char *name; /* the name after the dashes, name_len bytes long */
    size_t name_len;
    const char *attached;        /* text after "=", or NULL */
    const struct mf_opt *option; /* known option with this name, or NULL */
    bool off;                    /* the name was written with "no-" */
};

static struct word read_word(const struct mf_opt *opts, size_t n, const char *text)
{
    struct word w = {.text = text, .name = text + (text[1] == '-' ? 2 : 1)};
    w.name_len = strcspn(w.name, "=");
    if (w.name[w.name_len] == '=')
        w.attached = w.name + w.name_len + 1;

    w.option = find_in(opts, n, w.name, w.name_len);
    if (!w.option && w.name_len > 3 && strncmp(w.name, "no-", 3) == 0) {
        const struct mf_opt *o = find_in(opts, n, w.name + 3, w.name_len - 3);
        if (o && !has_value(o)) {
            w.option = o;
            w.off = true;
        }
    }
    return w;
}

/* Returns how many argv words the option and its value take. next: the following word or NULL. */
static int words_of(const struct word *w, const char *next)
{
    if (!w->option || !has_value(w->option) || w->attached)
        return 1;
    /* An optional value never starts with a dash */
    return w->option->type == MF_OPT_OPTIONAL && (!next || next[0] == '-') ? 1 : 2;
}

int mf_opts_words(const struct mf_opt *opts, size_t n, const char *word, const char *next)
{
    struct word w = read_word(opts, n, word);
    return words_of(&w, next);
}

static int refuse_unknown(const struct mf_opt *opts, size_t n, const struct word *w)
{
    const struct mf_opt *meant = nearest(opts, n, w->name, w->name_len);
    int shown = (int)(w->name - w->text + (ptrdiff_t)w->name_len);
    if (meant)
        fprintf(stderr, "unknown option %.*s; did you mean %s%s? (--help lists all)\n", shown, w->text,
                dashes(meant), meant->name);
    else
        fprintf(stderr, "unknown option %.*s (--help lists all)\n", shown, w->text);
    return -EINVAL;
}

static int set_int(const struct mf_opt *o, const char *text)
{
    bool any = o->min == 0 && o->max == 0;
    if (mf_parse_i64(text, any ? INT64_MIN : o->min, any ? INT64_MAX : o->max, o->value) == 0)
        return 0;
    if (any)
        fprintf(stderr, "%s%s: '%s' is not an integer\n", dashes(o), o->name, text);
    else
        fprintf(stderr, "%s%s: '%s' is not an integer from %" PRId64 " to %" PRId64 "\n", dashes(o), o->name,
                text, o->min, o->max);
    return -EINVAL;
}

static int append_value(const struct mf_opt *o, const char *text)
{
    struct mf_opt_list *list = o->value;
    if (list->n == list->max) {
        fprintf(stderr, "%s%s %s: more than %d values\n", dashes(o), o->name, text, list->max);
        return -EINVAL;
    }
    list->values[list->n++] = text;
    return 0;
}

static int set_value(const struct mf_opt *o, const char *text)
{
    switch (o->type) {
    case MF_OPT_INT:
        return set_int(o, text);
    case MF_OPT_DOUBLE:
        if (mf_parse_double(text, o->value) == 0)
            return 0;
        fprintf(stderr, "%s%s: '%s' is not a number\n", dashes(o), o->name, text);
        return -EINVAL;
    case MF_OPT_OPTIONAL:
    case MF_OPT_TEXT:
        *(const char **)o->value = text;
        return 0;
    case MF_OPT_LIST:
        return append_value(o, text);
    case MF_OPT_BOOL:
        break;
    }
    return -EINVAL;
}

static int set_bool(const struct mf_opt *o, const struct word *w)
{
    if (w->attached) {
        fprintf(stderr, "%s%s takes no value; write --%s or --no-%s\n", dashes(o), o->name, o->name, o->name);
        return -EINVAL;
    }
    *(bool *)o->value = !w->off;
    return 0;
}

/* Sets the value of one option. next: the following word or NULL. */
static int apply_option(const struct word *w, const char *next)
{
    const struct mf_opt *o = w->option;
    if (!has_value(o))
        return set_bool(o, w);
    const char *value = w->attached ? w->attached : next;
    if (o->type == MF_OPT_OPTIONAL && !w->attached && words_of(w, next) == 1)
        value = "";
    if (!value) {
        fprintf(stderr, "%s%s needs a value: %s%s %s\n", dashes(o), o->name, dashes(o), o->name,
                argument_of(o));
        return -EINVAL;
    }
    return set_value(o, value);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] != '\0' && strcmp(word, "--") != 0;
}

/* Handles --help and --version before any value is set, because --help shows the defaults. */
static bool print_help_or_version(const char *usage, const struct mf_opt *opts, size_t n, int argc,
                                  char **argv)
{
    for (int i = 1; i < argc && is_option(argv[i]);) {
        struct word w = read_word(opts, n, argv[i]);
        if (!w.option && (strcmp(w.name, "help") == 0 || strcmp(w.name, "h") == 0)) {
            mf_opts_help(stdout, usage, opts, n);
            return true;
        }
        if (!w.option && strcmp(w.name, "version") == 0) {
            printf("%s %s\n", base_name(argv[0]), MF_VERSION);
            return true;
        }
        i += words_of(&w, i + 1 < argc ? argv[i + 1] : NULL);
    }
    return false;
}

int mf_opts_parse(const char *usage, const struct mf_opt *opts, size_t n, int argc, char **argv,
                  int *ret_rest)
{
    if (print_help_or_version(usage, opts, n, argc, argv))
        return 1;

    int i = 1;
    while (i < argc && is_option(argv[i])) {
        struct word w = read_word(opts, n, argv[i]);
        if (!w.option)
            return refuse_unknown(opts, n, &w);
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        int r = apply_option(&w, next);
        if (r < 0)
            return r;
        i += words_of(&w, next);
    }
    if (i < argc && strcmp(argv[i], "--") == 0)
        i++;
    *ret_rest = i;
    return 0;
}
