/* What every family of the CPU has to keep, checked on every step that it offers for a shape: inputs are the
 * reference's tensor specs with NaN in every row of padding, outputs lie between guards and start as poison, what comes
 * out is held against the reference row by row, inputs stay as they were, and a second run gives the same bits. */
#pragma once

#include "common/moe/shape.h"
#include "kernels/core/device.h"
#include "kernels/core/family.h"

struct contract_case {
    int64_t token;
    int32_t model_dim, inter_dim, expert, topk;
    enum mf_act act;
    bool doweight;
};

struct contract_format {
    enum mf_dtype a, w;
    enum mf_qtype q_type;
    const char *family; /* of the two-stage GEMMs, the one that takes it */
};
#define CONTRACT_N_FORMATS 21
extern const struct contract_format contract_formats[CONTRACT_N_FORMATS];

struct mf_shape contract_shape(const struct contract_case *c, const struct contract_format *f);

/* A CPU device of that instruction set (as MOEFARM_ISA has it; NULL: the machine's best) with ceilings that nobody measured; NULL when the
 * machine lacks it. */
struct mf_device *contract_device(const char *isa);

/* Keeps this process to one core, another one for each number, before its device counts them: its threads then wait for none that
 * a busy machine keeps. */
void contract_one_core(int which);

/* Checks every step of the family for the shape; -> how many. */
int contract_check(struct mf_device *device, const char *family, const struct mf_shape *shape);

/* A device that watches what its launches touch. */
struct contract_guard {
    /* Memory that launches may read, or also write; NULL: what was known is forgotten. */
    void (*know)(struct mf_device *d, const void *memory, size_t bytes, bool writable);
    const char *(*why)(const struct mf_device *d); /* of the last launch that failed */
};
/* How many allocations there were so far. */
typedef size_t (*contract_counter)(void);
struct contract_run {
    struct mf_device *device;
    const char *const *families; /* of the device's kind */
    size_t n_families;
    const struct mf_shape *shape;
    /* So many steps of a family, evenly spread over what it offers, or over those that cover the same ops and give the same tensor; first (any
     * number) shifts them. */
    int most, first;
    bool of_each;
    /* Other than 0: steps are offered for and opened for so many tokens, and told of the shape's own, as production serves a
     * call by its bucket's row. */
    int64_t bucket;
    const struct contract_guard *guard; /* NULL: none */
    contract_counter allocations;       /* launches must make none; NULL: nobody counts */
    /* The first tokens are wild: gates in tens and in tens of thousands, weights of zero and far from a sum of one. The last
     * two have a NaN and an infinity, and only their own rows may show it. At least CONTRACT_WILD_TOKENS; not where one scale
     * is drawn from all rows. */
    bool wild;
};
#define CONTRACT_WILD_TOKENS 7
/* -> how many steps were checked */
int contract_check_some(const struct contract_run *run);

/* What a captured graph does: every step is opened and launched on a balanced routing, then on one that sends every token to
 * the same topk experts of this rank; and opened and launched in the other order; right each time, and without allocating.
 * -> how many. */
int contract_replay(struct mf_device *device, const char *family, const struct mf_shape *shape,
                    contract_counter allocations);

/* What the family says to a shape: counts of steps and rejections, and the first rejection. */
struct contract_answer {
    int steps[MF_STAGE_N_], rejections;
    char rule[64], reason[MF_REASON_MAX];
};
void contract_ask(const char *family, const struct mf_shape *shape, int cores, struct contract_answer *ret);
