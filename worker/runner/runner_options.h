/* The command line with which a worker starts a runner. */
#pragma once

#include "worker/runner/runner.h"

/* Parses argv[1..]. Texts of *ret point into argv. Returns -EINVAL after a message on stderr. */
int mf_runner_options_parse(int argc, char **argv, struct mf_runner_options *ret);

/* Collects all values of a repeatable option such as "--family-so", in order; mf_opts_parse keeps only the
 * last value. Returns -EINVAL after a message on stderr if there are more than max values. */
int mf_collect_option(const char *option, const char **values, int max, int *n, int argc, char **argv);
