/* The contract of every CPU family, checked on every step that it offers for a shape. Inputs are the
 * reference's tensors with NaN in every padding row. Outputs lie between guard bands and start as poison.
 * Outputs are compared with the reference row by row, inputs must stay unchanged, and a second run must give
 * the same bits. */
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
    const char *family; /* the two-stage GEMM family that supports it */
};
#define CONTRACT_N_FORMATS 21
extern const struct contract_format contract_formats[CONTRACT_N_FORMATS];

struct mf_shape contract_shape(const struct contract_case *c, const struct contract_format *f);

/* Opens a CPU device with the instruction set (a value of MOEFARM_ISA; NULL: the machine's best) and
 * placeholder ceilings. NULL if the machine lacks it. */
struct mf_device *contract_device(const char *isa);

/* Pins this process to the core with this number (modulo the available cores). Call it before opening a
 * device: the device then has one thread, which does not wait for threads on busy cores. */
void contract_pin_core(int which);

/* Checks every step of the family for the shape; returns their number. */
int contract_check(struct mf_device *device, const char *family, const struct mf_shape *shape);

/* Hooks into a device that checks the memory accesses of launches. */
struct contract_guard {
    /* Registers memory that launches may read, or also write; NULL: forgets all registered memory. */
    void (*know)(struct mf_device *d, const void *memory, size_t bytes, bool writable);
    const char *(*why)(const struct mf_device *d); /* of the last failed launch */
};
/* Returns the number of allocations so far. */
typedef size_t (*contract_counter)(void);
struct contract_run {
    struct mf_device *device;
    const char *const *families; /* of the device's kind */
    size_t n_families;
    const struct mf_shape *shape;
    /* Maximum number of steps to check per family, evenly spread over its offer, or per set of covered ops
     * and given tensor (of_each). first (any number) shifts the choice. */
    int most, first;
    bool of_each;
    /* If not 0, steps are enumerated and opened for this token count, and launched with the shape's own:
     * production serves a call with the row of its bucket. */
    int64_t bucket;
    const struct contract_guard *guard; /* NULL: none */
    contract_counter allocations;       /* launches must not allocate; NULL: not counted */
    /* The first tokens have extreme values: gates in the tens and tens of thousands, routing weights of zero
     * or with a sum far from one. The last two contain a NaN and an infinity, which may reach only their own
     * rows. Needs CONTRACT_WILD_TOKENS tokens; not for formats with one scale for all rows. */
    bool wild;
};
#define CONTRACT_WILD_TOKENS 7
/* Returns the number of steps checked. */
int contract_check_some(const struct contract_run *run);

/* Checks the use in a captured graph: opens and launches every step on a balanced routing, then on one that
 * sends every token to the same topk experts of this rank; then opens and launches it in the opposite order.
 * Each launch must be correct and must not allocate. Returns the number of steps. */
int contract_replay(struct mf_device *device, const char *family, const struct mf_shape *shape,
                    contract_counter allocations);

/* What a family offers for a shape: number of steps per stage and of rejections, and the first rejection. */
struct contract_answer {
    int steps[MF_STAGE_N_], rejections;
    char rule[64], reason[MF_REASON_MAX];
};
void contract_enumerate(const char *family, const struct mf_shape *shape, int cores,
                        struct contract_answer *ret);
