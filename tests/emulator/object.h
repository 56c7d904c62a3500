/* Compiles a GPU kernel source with g++ into a shared object for the host, loads the object and looks up its
 * kernels.
 *
 * Objects are built in a folder that the caller names. The source and its headers come from a second folder,
 * which holds this tree's kernels or the texts passed to hipRTC. */
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
/* Finds "sm_89", "sm_90", "gfx90a" or "gfx942"; returns NULL for other names. */
const struct mf_flavour *mf_flavour_find(const char *gfx);

/* Compiles tsan_hooks.cc, which every object links, into the folder. Called once per folder. Returns -ENOENT
 * if g++ is missing. */
int mf_object_prepare(const char *folder);

struct mf_object_build {
    const char *folder;  /* folder that was passed to mf_object_prepare */
    const char *sources; /* folder of `source` and its includes */
    const char *source;  /* like "tile.hip" */
    const struct mf_flavour *flavour;
    const char *options; /* like " -DNAME=VALUE …" */
};
/* Starts a process that builds `path` (created atomically) and writes compiler messages to `path`.log. */
int mf_object_start(const struct mf_object_build *b, const char *path, pid_t *ret);
/* Waits for the process. Returns true if the process succeeded. */
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
/* Loads an object. Returns -ENOENT or -ENOEXEC and the reason in `why`, or -ENOMEM. */
int mf_object_load(const char *path, char *why, size_t why_cap, struct mf_object **ret);
struct mf_object *mf_object_unload(struct mf_object *o);
/* Returns NULL if there is no kernel of that name. The result is valid until the object is unloaded. */
struct mf_object_function *mf_object_find(struct mf_object *o, const char *name);

/* Appends to `why` the source line of an address in the object, like "… (tile.hip:340)". If the address is in
 * an inlined dialect primitive, this is the line of the kernel that uses it. Appends nothing if binutils is
 * missing. */
void mf_object_add_line(const struct mf_object *o, uintptr_t pc, char *why, size_t why_cap);
