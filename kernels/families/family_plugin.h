/* Loads kernel families from shared objects into a runner or a production process.
 *
 * A shared object exports one symbol (kernels/core/family.h, MF_FAMILY_ENTRY):
 *
 *     const struct mf_family *mf_family_entry(void);
 *
 * The returned family stays valid while the object is loaded. The family must have this build's API version,
 * a unique name, a device kind and the four mandatory callbacks. Otherwise the object is unloaded and the
 * reason is reported. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/core/family.h"

#define MF_PLUGINS_MAX 8

struct mf_family_plugins {
    void *handles[MF_PLUGINS_MAX];
    const struct mf_family *families[MF_PLUGINS_MAX];
    uint64_t hashes[MF_PLUGINS_MAX]; /* hash of each file's bytes */
    size_t n;
};

/* Loads a shared object. Loading runs code of the object, which may crash. On failure, returns -errno and the
 * reason in why. */
int mf_family_plugin_load(struct mf_family_plugins *p, const char *path, char *why, size_t why_cap);
/* Does the same as mf_family_plugin_load, but first loads the object in a child process, so that a crash or
 * hang happens in the child. The calling process must be single-threaded. */
int mf_family_plugin_load_guarded(struct mf_family_plugins *p, const char *path, char *why, size_t why_cap);
/* Unloads the object that was loaded last. */
void mf_family_plugins_drop_last(struct mf_family_plugins *p);
/* Unloads all objects. Their kernels must be closed. */
void mf_family_plugins_release(struct mf_family_plugins *p);
static inline struct mf_family_set mf_family_plugins_set(const struct mf_family_plugins *p)
{
    return (struct mf_family_set){p->families, p->n};
}

/* The revision of a family: the build's kernel revision, followed by the hash of the external files from
 * which the family takes its kernels, unless the hash is 0. A changed external file thus changes the revision
 * of its family. */
#define MF_REVISION_MAX 80
void mf_kernel_revision_with(uint64_t hash, char buf[MF_REVISION_MAX]);
