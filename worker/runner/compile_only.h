/* --compile-only: fills a cache of code objects for a device of another machine. Needs the vendor's run-time
 * compiler, but no GPU. The cache (kernels/core/code.h) can be copied to the other machine. */
#pragma once

struct mf_compile_only {
    const char
        *arch; /* "nvidia:sm_90/132" or "amd:gfx90a"; without a number of compute units, the whole chip */
    const char *shapes;   /* path of an untuned_fmoe.csv */
    const char *families; /* comma-separated list of families; "": all families */
};
/* Prints one line per shape, followed by compiler errors. Returns the exit code: 1 if a row is invalid or a
 * compilation failed, 2 for an invalid option. */
int mf_compile_only(const struct mf_compile_only *o);
