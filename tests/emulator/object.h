/* A source of GPU kernels as a shared object for the host: compiled by g++, loaded, and its functions by name.
 *
 * Compiling works in a folder of the caller's and takes the source and its headers from another, so that what is compiled is
 * what is there: this tree's own kernels, or texts that somebody was handed. */
#pragma once

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

#include "emulator/calls.h"
#include "emulator/grid.h"

/* An architecture as its compiler has it. */
struct mf_flavour {
    const char *gfx, *define;
    uint32_t wave_lanes;
};
/* "sm_89", "gfx90a" or "gfx942"; NULL: another. */
const struct mf_flavour *mf_flavour_find(const char *gfx);

/* What every object has beside its kernels, into the folder, once. -ENOENT: there is no compiler. */
int mf_object_prepare(const char *folder);

struct mf_object_build {
    const char *folder;  /* prepared */
    const char *sources; /* where `source` and what it includes is */
    const char *source;  /* "tile.hip" */
    const struct mf_flavour *flavour;
    const char *options; /* " -DNAME=VALUE …" */
};
/* Starts a process that makes `path`, which is whole or not there; its words go to `path`.log. */
int mf_object_start(const struct mf_object_build *b, const char *path, pid_t *ret);
/* Waits for it. */
bool mf_object_finish(pid_t child);

/* A function of an object that is loaded. */
struct mf_object_function {
    struct mf_object *object;
    const struct mf_emulator_kernel *kernel;
};
struct mf_object {
    struct mf_emulator_module module;
    void *handle;
    char path[PATH_MAX];
    struct mf_object_function *functions; /* the last has no kernel */
};
/* -ENOENT or -ENOEXEC with the sentence in why; -ENOMEM. */
int mf_object_load(const char *path, char *why, size_t why_cap, struct mf_object **ret);
struct mf_object *mf_object_unload(struct mf_object *o);
/* NULL: it has none of that name. Valid until the object is unloaded. */
struct mf_object_function *mf_object_find(struct mf_object *o, const char *name);

/* Adds to why where in a kernel's source an address of the object is, "… (tile.hip:340)", past the words that it is inlined
 * from; where binutils can say it. */
void mf_object_add_line(const struct mf_object *o, uintptr_t pc, char *why, size_t why_cap);
