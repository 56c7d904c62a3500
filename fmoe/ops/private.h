/* Types and functions shared by the operators of libfmoe (fmoe_ops.h). */
#pragma once

#include <errno.h>

#include "common/base/cleanup.h"
#include "fmoe/fmoe_ops.h"
#include "fmoe/private.h"
#include "kernels/families/family_hip.h"

/* Modules of the GPU kernels, and the index of each kernel in its module. */
enum fmoe_ops_module {
    FMOE_OPS_SORT,
    FMOE_OPS_PERMUTE,
    FMOE_OPS_MAP,
    FMOE_OPS_ROUTE,
    FMOE_OPS_SHUFFLE,
    FMOE_OPS_QUANTISE, /* the first of one module per kind of element and scale */
    FMOE_OPS_MODULES = FMOE_OPS_QUANTISE + 8
};
enum { FMOE_OPS_SORT_ALL, FMOE_OPS_SORT_COUNT };
enum { FMOE_OPS_PERMUTE_ROWS, FMOE_OPS_PERMUTE_SORT, FMOE_OPS_PERMUTE_GATHER, FMOE_OPS_PERMUTE_BACK };
enum { FMOE_OPS_MAP_PLACE, FMOE_OPS_MAP_COUNT };
enum { FMOE_OPS_QUANTISE_GROUPS, FMOE_OPS_QUANTISE_BLOCK, FMOE_OPS_QUANTISE_AMAX, FMOE_OPS_QUANTISE_ALL };
#define FMOE_OPS_FUNCTIONS 4

struct fmoe_ops {
    struct mf_device *device;
    bool is_borrowed; /* the caller closes the device */
    int wave;         /* GPU: lanes per warp; 0 on a CPU */
    struct mf_hip_function functions[FMOE_OPS_MODULES][FMOE_OPS_FUNCTIONS];
};

/* Writes the code of all modules that an architecture supports, and returns their number: 0 if it supports
 * none. Needs no device. */
size_t fmoe_ops_codes(const struct mf_device_info *device, struct mf_code ret[FMOE_OPS_MODULES]);
/* As fmoe_ops_open, on an open device that outlives the handle. */
int fmoe_ops_open_on(struct mf_device *device, struct fmoe_error *error, struct fmoe_ops **ret);

static inline bool fmoe_ops_on_gpu(const struct fmoe_ops *o)
{
    return o->wave > 0;
}

/* Every call is between fmoe_ops_begin and, if that succeeded, fmoe_ops_end, which returns r. On a GPU, r is
 * the result of the launches, and fmoe_ops_end writes the message of an error. On the CPU, the operator has
 * written the message. */
int fmoe_ops_begin(struct fmoe_ops *o, struct fmoe_error *error);
int fmoe_ops_end(struct fmoe_ops *o, int r, struct fmoe_error *error);

/* Launches a kernel with `blocks` blocks and `shared` bytes of dynamic shared memory. */
struct fmoe_ops_launch {
    int module, function;
    int64_t blocks;
    size_t shared;
    void *stream;
};
int fmoe_ops_launch(const struct fmoe_ops *o, const struct fmoe_ops_launch *l, const void *args,
                    size_t bytes);
int fmoe_ops_threads(int module); /* threads per block */
/* Blocks of a kernel that loops over `warps` warps of work: `resident` per SM or CU, or fewer. */
int64_t fmoe_ops_blocks(const struct fmoe_ops *o, int module, int64_t warps, int resident);

/* Checks tokens, topk, experts and the type of ids. */
int fmoe_ops_check_ids(const struct fmoe_op_routes *routes, struct fmoe_error *error);
/* Checks the same, and that the device can sort routes by this number of experts. */
int fmoe_ops_check_routes(const struct fmoe_ops *o, const struct fmoe_op_routes *routes,
                          struct fmoe_error *error);
/* Checks n rows of `bytes` bytes that are copied or added. */
int fmoe_ops_check_rows(int64_t n, size_t bytes, struct fmoe_error *error);
int fmoe_ops_cpu_threads(const struct fmoe_op_routes *routes);

/* GPU: launches a sort. Sets the slices, the ids and the workspace; the caller has set the outputs. */
struct mf_op_sort_args;
void fmoe_ops_sort_prepare(const struct fmoe_op_routes *routes, void *workspace, struct mf_op_sort_args *a);
size_t fmoe_ops_sort_bytes(const struct fmoe_op_routes *routes); /* workspace on a GPU */
size_t fmoe_ops_sort_shared(const struct fmoe_ops *o, const struct mf_op_sort_args *a);
int fmoe_ops_sort_launch(const struct fmoe_ops *o, const struct mf_op_sort_args *a, void *stream);

/* GPU: copies rows. */
#define FMOE_OPS_RESIDENT 2 /* blocks per SM or CU of the kernels that copy rows */
struct mf_op_rows;
struct mf_op_gather_args;
struct mf_op_rows fmoe_ops_gpu_rows(const struct fmoe_op_rows *rows);
int fmoe_ops_launch_gather(const struct fmoe_ops *o, const struct mf_op_gather_args *a, void *stream);
