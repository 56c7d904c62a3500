/* Families from shared objects: code of somebody else's, loaded into a runner or into production.
 *
 * A shared object exports one symbol (kernels/core/family.h, MF_FAMILY_ENTRY):
 *
 *     const struct mf_family *mf_family_entry(void);
 *
 * What it returns lives as long as the object is loaded, and has the api of this build, a name that no other family has,
 * a device kind and its four calls. Everything else is refused in a sentence. A refused object is not kept. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/core/family.h"

#define MF_PLUGINS_MAX 8

struct mf_family_plugins {
    void *handles[MF_PLUGINS_MAX];
    const struct mf_family *families[MF_PLUGINS_MAX];
    size_t n;
    uint64_t hash; /* of the loaded files' bytes, in order; 0 when there are none */
};

/* Loads one more, and -errno with the sentence in why. Code of the object runs here: it may crash. */
int mf_family_plugin_load(struct mf_family_plugins *p, const char *path, char *why, size_t why_cap);
/* The same in a child first, so that an object that crashes or hangs while it is loaded does so there. Only for a
 * process without threads. */
int mf_family_plugin_load_guarded(struct mf_family_plugins *p, const char *path, char *why, size_t why_cap);
/* Every kernel of theirs has to be closed. */
void mf_family_plugins_release(struct mf_family_plugins *p);
static inline struct mf_family_set mf_family_plugins_set(const struct mf_family_plugins *p)
{
    return (struct mf_family_set){p->families, p->n};
}

/* The revision of results with kernels from outside: the build's, and the hash of what came from outside, so that a
 * changed file is a new revision. The build's alone for a hash of 0. */
#define MF_REVISION_MAX 80
void mf_kernel_revision_with(uint64_t hash, char buf[MF_REVISION_MAX]);
