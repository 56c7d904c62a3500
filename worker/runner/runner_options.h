/* The command line with which a worker starts a runner. */
#pragma once

#include "worker/runner/runner.h"

/* Parses argv[1..]. Texts of *ret point into argv. Returns -EINVAL after a message on stderr. */
int mf_runner_options_parse(int argc, char **argv, struct mf_runner_options *ret);
