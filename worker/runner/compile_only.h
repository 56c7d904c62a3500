/* --compile-only: fills a cache of code objects for a device that is elsewhere (kernels/core/code.h says where the cache is; it
 * may be carried anywhere). Needs the vendor's run-time compiler and no GPU. */
#pragma once

struct mf_compile_only {
    const char *
        arch; /* "nvidia:sm_90/132", "amd:gfx90a"; without the compute units those that its class is known for */
    const char *shapes;   /* path of an untuned_fmoe.csv */
    const char *families; /* comma list; "": all */
};
/* A line for each shape, the failures below it with the compiler's words. The program's exit code: 1 when a row was
 * unreadable or a code failed, 2 for a wrong option. */
int mf_compile_only(const struct mf_compile_only *o);
