/* Command-line options from a table: one row defines parsing, the --help line and the default.
 *
 * Accepts "--name value" and "--name=value". A bool takes no value and also has "--no-name". The first word
 * that is not an option starts the positional arguments; "--" ends the options. One dash is accepted in place
 * of two, and an underscore in place of a dash within a name. --help shows one-letter names with one dash.
 * Consecutive rows with the same value pointer are spellings of one option; only one of these rows has the
 * help text. --help, -h and --version always exist. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum mf_opt_type {
    MF_OPT_BOOL,
    MF_OPT_INT,
    MF_OPT_DOUBLE,
    MF_OPT_TEXT,
    MF_OPT_OPTIONAL, /* text; "" if the option is given without a value */
    MF_OPT_LIST,     /* text; repeatable: each value is appended */
};

/* The values of an option of type MF_OPT_LIST, in order. */
struct mf_opt_list {
    const char **values; /* array of `max` pointers */
    int max, n;
};

struct mf_opt {
    const char *name; /* without dashes */
    enum mf_opt_type type;
    /* variable of type bool, int64_t, double, const char * or struct mf_opt_list; holds the default before
     * parsing */
    void *value;
    const char *argument; /* placeholder of the value in --help; NULL for a bool */
    const char *help;
    /* range of an int; min and max both 0: unlimited. A default outside the range means "not set" and is not
     * shown */
    int64_t min, max;
};

/* usage: the text that --help prints after "usage: ", including a description:
 *   "moefarm rank [options] BATCH\n\nPrint the configs of a batch, best first."
 *
 * Parses argv[1..]; *ret_rest is the index of the first positional argument. Returns 0, or 1 if --help or
 * --version was printed (the caller exits with 0). Returns -EINVAL after a message on stderr that names the
 * option and the fix; the options before the rejected one are then already set. */
int mf_opts_parse(const char *usage, const struct mf_opt *opts, size_t n, int argc, char **argv,
                  int *ret_rest);
/* Returns how many argv words the option takes (1 or 2). `word` starts with '-'; `next` is the following word
 * or NULL. An unknown option takes one word. */
int mf_opts_words(const struct mf_opt *opts, size_t n, const char *word, const char *next);
void mf_opts_help(FILE *out, const char *usage, const struct mf_opt *opts, size_t n);
