/* Command-line options from a table: one row gives parsing, --help and the default.
 *
 * "--name value" and "--name=value"; a bool takes no value and has "--no-name". Everything after the first
 * word that is no option is positional; "--" ends the options. One dash is as good as two, and a name of one
 * letter is shown with one; within a name an underscore is as good as a dash. Rows one below the other that set the same
 * value are spellings of one option, of which one has the help. --help, -h and --version are always there. */
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
    MF_OPT_OPTIONAL, /* a text that may be left out: "" then */
};

struct mf_opt {
    const char *name; /* without dashes */
    enum mf_opt_type type;
    void *value;          /* bool, int64_t, double or const char *; holds the default before parsing */
    const char *argument; /* what --help calls the value; NULL for a bool */
    const char *help;
    int64_t min, max; /* of an int; both 0: any. A default beyond them means "not given" and is not shown */
};

/* usage is what --help prints after "usage: ", then more lines that say what the program does:
 * "moefarm rank [options] BATCH\n\nPrints the configs of a batch, best first."
 * Parses argv[1..]; *ret_rest is the index of the first positional word. 0, 1 when --help or --version was
 * printed (the caller exits 0), -EINVAL after a message on stderr that names the option and the fix; values
 * before the refused one are then already set. */
int mf_opts_parse(const char *usage, const struct mf_opt *opts, size_t n, int argc, char **argv,
                  int *ret_rest);
/* How many words an option and its value are: 1 or 2. word starts with a dash; next is the one behind it, NULL at the end. An
 * unknown option is one word. */
int mf_opts_words(const struct mf_opt *opts, size_t n, const char *word, const char *next);
void mf_opts_help(FILE *out, const char *usage, const struct mf_opt *opts, size_t n);
