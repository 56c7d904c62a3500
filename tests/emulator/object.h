/* Compiles a GPU kernel source with g++ into a shared object for the host, loads it and looks up its kernels.
 *
 * Objects are built in a folder of the caller. The source and its headers come from a second folder: either
 * this tree's kernels or texts passed to hipRTC. */
#pragma once

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

#include "emulator/calls.h"
#include "emulator/grid.h"

/* An emulated GPU architecture. */
struct mf_flavour {
    const char *gfx, *define;
    uint32_t wave_lanes;
};
/* "sm_89", "sm_90", "gfx90a" or "gfx942"; NULL for others. */
const struct mf_flavour *mf_flavour_find(const char *gfx);

/* Compiles beside.cc, which every object links, into the folder. Call once per folder. -ENOENT: g++ is
 * missing. */
int mf_object_prepare(const char *folder);

struct mf_object_build {
    const char *folder;  /* passed to mf_object_prepare */
    const char *sources; /* folder of `source` and its includes */
    const char *source;  /* "tile.hip" */
    const struct mf_flavour *flavour;
    const char *options; /* " -DNAME=VALUE …" */
};
/* Starts a process that builds `path` (created atomically) and writes compiler messages to `path`.log. */
int mf_object_start(const struct mf_object_build *b, const char *path, pid_t *ret);
/* Waits for the process; true if it succeeded. */
bool mf_object_finish(pid_t child);

/* A kernel of a loaded object. */
struct mf_object_function {
    struct mf_object *object;
    const struct mf_emulator_kernel *kernel;
};
struct mf_object {
    struct mf_emulator_module module;
    void *handle;
    char path[PATH_MAX];
    struct mf_object_function *functions; /* terminated by an entry without kernel */
};
/* -ENOENT or -ENOEXEC with the reason in `why`; -ENOMEM. */
int mf_object_load(const char *path, char *why, size_t why_cap, struct mf_object **ret);
struct mf_object *mf_object_unload(struct mf_object *o);
/* Returns NULL if there is no kernel of that name. Valid until the object is unloaded. */
struct mf_object_function *mf_object_find(struct mf_object *o, const char *name);

/* Appends to `why` the kernel source line of an address of the object, "… (tile.hip:340)", outside inlined
 * dialect primitives. Appends nothing without binutils. */
void mf_object_add_line(const struct mf_object *o, uintptr_t pc, char *why, size_t why_cap);
