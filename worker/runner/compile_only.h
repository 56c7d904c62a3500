/* --compile-only: fills a cache of code objects for a device of another machine. Needs the run-time compiler
 * of the vendor but no GPU. The cache (see kernels/core/code.h) may be copied to that machine. */
#pragma once

struct mf_compile_only {
    const char
        *arch; /* "nvidia:sm_90/132", "amd:gfx90a"; default for compute units: those of the whole chip */
    const char *shapes;   /* path of an untuned_fmoe.csv */
    const char *families; /* comma-separated; "": all */
};
/* Prints one line per shape and, below it, compiler errors. Returns the exit code: 1 if a row is invalid or a
 * compilation failed, 2 for an invalid option. */
int mf_compile_only(const struct mf_compile_only *o);
