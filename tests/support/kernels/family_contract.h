/* Checks the contract of every family on every step that it offers for a shape. Inputs are the tensors of the
 * reference, with NaN in every padding row. One route of four has an id that no expert has. Outputs lie
 * between guard bands and are poisoned before the run. Each row of an output is compared with the reference,
 * inputs must stay unchanged, and a second run, with int64 ids and bf16 weights, must give the same bits. */
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
    const char *family; /* two-stage GEMM family that supports the format */
};
#define CONTRACT_N_FORMATS 21
extern const struct contract_format contract_formats[CONTRACT_N_FORMATS];

struct mf_shape contract_shape(const struct contract_case *c, const struct contract_format *f);

/* Opens a CPU device with an instruction set: a value of MOEFARM_ISA, or NULL for the machine's best. The
 * device has placeholder ceilings. Returns NULL if the machine lacks the instruction set. */
struct mf_device *contract_device(const char *isa);

/* Pins this process to one core: core number `which` modulo the number of available cores. Call this function
 * before opening a device. The device then has a single thread, which never waits for threads on busy cores.
 */
void contract_pin_core(int which);

/* Checks every step that the family offers for the shape. Returns the number of steps. */
int contract_check(struct mf_device *device, const char *family, const struct mf_shape *shape);

/* Hooks into a device that checks the memory accesses of launches. */
struct contract_guard {
    /* Allows launches to read the memory, and also to write it if `writable` is true. memory NULL: withdraws
     * all permissions. */
    void (*know)(struct mf_device *d, const void *memory, size_t bytes, bool writable);
    const char *(*why)(const struct mf_device *d); /* returns the reason of the last failed launch */
};
/* Returns the number of allocations so far. */
typedef size_t (*contract_counter)(void);
struct contract_run {
    struct mf_device *device;
    const char *const *families; /* families of the device's kind */
    size_t n_families;
    const struct mf_shape *shape;
    /* most: maximum number of steps to check, spread evenly over the offer of a family. If of_each is true,
     * the maximum applies to each set of covered ops and output tensor. first: shifts the choice of steps;
     * any number is valid. */
    int most, first;
    bool of_each;
    /* If not 0, steps are enumerated and opened for this token count but launched with the token count of the
     * shape, because production serves a call with the row of its bucket. */
    int64_t bucket;
    const struct contract_guard *guard; /* NULL: accesses are not checked */
    /* counter of allocations, which must not change during a launch; NULL: allocations are not checked */
    contract_counter allocations;
    /* The first tokens get extreme values: gates in the tens and in the tens of thousands, and routing
     * weights that are zero or whose sum is far from one. The last two tokens contain a NaN and an infinity,
     * which may affect only the rows of these tokens. Requires at least CONTRACT_WILD_TOKENS tokens, and a
     * format that does not derive one scale from all rows. */
    bool wild;
};
#define CONTRACT_WILD_TOKENS 7
/* Returns the number of steps checked. */
int contract_check_some(const struct contract_run *run);

/* Checks that steps work in captured graphs, where the routing changes between launches. Opens each step and
 * launches it on a balanced routing, then on a routing that sends every token to the same topk experts of
 * this rank. Then opens the step again and launches it in the opposite order. Each launch must be correct and
 * must not allocate memory. Returns the number of steps. */
int contract_replay(struct mf_device *device, const char *family, const struct mf_shape *shape,
                    contract_counter allocations);

/* What a family offers for a shape: the number of steps per stage, the number of rejections, and rule and
 * reason of the first rejection. */
struct contract_answer {
    int steps[MF_STAGE_N_], rejections;
    char rule[64], reason[MF_REASON_MAX];
};
void contract_enumerate(const char *family, const struct mf_shape *shape, int cores,
                        struct contract_answer *ret);
