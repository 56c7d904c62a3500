/* Helpers shared by the GPU families: supported shapes, and compiling, loading and launching kernels.
 *
 * mf_family.code writes the source and the macro definitions of a step. This callback needs no GPU, so the
 * code cache can be filled on any machine. Opening a step compiles the code, or reads it from the cache, and
 * loads it. */
#pragma once

#include "kernels/core/codec.h"
#include "kernels/core/family.h"
#include "kernels/families/family_cpu.h"

/* Values of MF_FORMAT in the sources of two_stage and one_stage (kernels/gpu/src/format.h). NARROW: the
 * formats of two_stage_mx and two_stage_int4, which have separate sources. */
enum mf_hip_format {
    MF_HIP_BF16,
    MF_HIP_FP8_TOKEN,
    MF_HIP_FP8_BLOCK,
    MF_HIP_FP8_TENSOR,
    MF_HIP_INT8_TOKEN,
    MF_HIP_INT8_BLOCK,
    MF_HIP_INT8_TENSOR,
    MF_HIP_NARROW
};
static inline bool mf_hip_is_int8(enum mf_hip_format f)
{
    return f >= MF_HIP_INT8_TOKEN && f <= MF_HIP_INT8_TENSOR;
}
/* True if the format has block scales: 1x128 for activations, 128x128 for weights. */
static inline bool mf_hip_by_block(enum mf_hip_format f)
{
    return f == MF_HIP_FP8_BLOCK || f == MF_HIP_INT8_BLOCK;
}

/* Properties of a GPU architecture that kernels depend on. */
struct mf_hip_machine {
    const char *gfx;  /* exact name, e.g. "gfx942", or the prefix "sm_" of a name that ends with a number */
    int least;        /* minimum of the number after the prefix; 0 if gfx is an exact name */
    int wave;         /* lanes per warp or wave */
    int shared_block; /* bytes of shared memory: limit per block */
    int shared_unit;  /* bytes of shared memory per SM or CU */
    int shared_extra; /* bytes the hardware reserves per resident block */
    bool fp8;         /* supports e4m3fn elements */
    bool fnuz;        /* supports e4m3fnuz elements */
    bool copies_held; /* global loads are staged in registers (MF_COPY_HELD of kernels/gpu/src/tile.hip) */
};
/* Returns NULL if no kernel supports the device. */
const struct mf_hip_machine *mf_hip_machine_of(const struct mf_device_info *device);

/* True if the GPU kernels of a two-stage family support the shape and the device. Family two_stage supports
 * 16- and 8-bit weights, two_stage_mx microscaled weights, two_stage_int4 int4 weights. ret_format may be
 * NULL. */
bool mf_hip_family_takes(const char *family, const struct mf_device_info *device,
                         const struct mf_shape *shape, enum mf_hip_format *ret_format,
                         struct mf_refusal *ret);

/* Grid of a persistent kernel: `blocks` blocks per SM or CU, or fewer if their shared memory does not fit. */
struct mf_grid mf_hip_persistent_grid(const struct mf_device_info *device, int threads, int blocks,
                                      uint32_t shared);

/* True if the kernels that move and quantise rows support the shape. These kernels support every activation
 * format that the device can convert. */
bool mf_hip_rows_known(const struct mf_device_info *device, const struct mf_shape *shape,
                       struct mf_refusal *ret);

/* Defines MF_FNUZ (kernels/gpu/src/dialect.h) if the shape's format is e4m3fnuz. */
void mf_hip_define_fnuz(struct mf_code *c, const struct mf_shape *shape);

/* Returns the layout of w1 that the kernels read. The default has all rows of gate, then all rows of up. */
const struct mf_layout *mf_hip_w1_layout(const struct mf_shape *shape);
/* Defines MF_GATE_ROWS (kernels/gpu/src/gate_up.h) if gate and up are interleaved. */
void mf_hip_define_gate_up(struct mf_code *c, const struct mf_shape *shape);
/* True if the device has kernels that read weights in layout panel128 ("sliced" in the code). */
bool mf_hip_reads_panel128(const struct mf_device_info *device);
/* True if the shape's w1 or w2 can be stored as panel128. */
bool mf_hip_may_panel128(const struct mf_shape *shape, enum mf_tensor w, struct mf_refusal *ret);
/* mf_hip_weights_order returns the layout's name in tensor specs. mf_hip_weights_word returns the layout's
 * word in step names ("" for row layout). */
const char *mf_hip_weights_order(const struct mf_shape *shape, enum mf_tensor w, bool sliced);
const char *mf_hip_weights_word(const struct mf_shape *shape, enum mf_tensor w, bool sliced);

/* Returns the member `types` of kernel arguments (kernels/gpu/src/args.h). */
int32_t mf_hip_route_types(const struct mf_launch *l);
/* Defines MF_E and, with expert parallelism, MF_FIRST (kernels/gpu/src/move/local_experts.h). */
void mf_hip_define_rank(struct mf_code *c, const struct mf_shape *shape);

/* Defines MF_ELEMENT and MF_GROUP (kernels/gpu/src/encode.h), and MF_FNUZ. */
void mf_hip_define_codec(struct mf_code *c, const struct mf_codec *codec);

/* Defines MF_ACT, MF_LIMIT and MF_ALPHA (kernels/gpu/src/activation.h). */
void mf_hip_define_activation(struct mf_code *c, const struct mf_shape *shape);

/* Returns the tensor spec of a zeroed y, the input of a step that accumulates into y. */
struct mf_tensor_spec mf_hip_zeroed_y(void);

/* A loaded kernel function. */
struct mf_hip_function {
    struct mf_device *device;
    struct mf_module *module;
    void *function;
    void *const *stream; /* stream of launches: the device's, or that of a kernel's copy */
};
/* Compiles and loads a function. Returns -ENOTSUP if the code does not compile for the device or does not
 * load; the reason is logged. */
int mf_hip_function_open(struct mf_device *device, const struct mf_code *code, struct mf_hip_function *ret);
/* Looks up another function in the module of `opened`. The function is valid as long as `opened` is. Returns
 * the errors of module_function. */
int mf_hip_function_lookup(const struct mf_hip_function *opened, const char *name,
                           struct mf_hip_function *ret);
void mf_hip_function_close(struct mf_hip_function *f);

/* An open step of a GPU family. */
struct mf_kernel {
    struct mf_hip_function function;
    const struct mf_hip_steps *steps;
    struct mf_shape shape;
    struct mf_grid grid;
    void *plan;   /* the family's own struct: parameters from the name, and values computed from the shape */
    void *stream; /* of a copy */
};
/* Callbacks for the parts of opening a step that differ between GPU families. Each family fills in a plan of
 * its own type. */
struct mf_hip_steps {
    size_t plan_bytes;
    /* Finds the step with that name and fills in the zeroed plan. Returns the errors of mf_family.open. */
    int (*find)(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *shape,
                const char *name, void *ret_plan);
    /* Writes the source and the macro definitions of the step. */
    void (*code)(const struct mf_device_info *device, const struct mf_shape *shape, const void *plan,
                 struct mf_code *ret);
    /* Fills in the grid and the parts of the plan that are valid for every token count up to the token count
     * at open. Optional. */
    void (*open)(struct mf_kernel *k);
    /* Fills in the parts of grid and plan that depend on shape.token. Optional. */
    void (*set_token_count)(struct mf_kernel *k);
};
/* Initialises a GPU family; the arguments are its name, enumerate, launch and hip_steps. */
#define MF_HIP_FAMILY(...)                                                                      \
    {                                                                                           \
        .api = MF_FAMILY_API, .device_kind = "hip", .open = mf_hip_open, .close = mf_hip_close, \
        .set_token_count = mf_hip_set_token_count, .copy = mf_hip_copy, .code = mf_hip_code,    \
        .supports_ep = true, __VA_ARGS__                                                        \
    }
/* The members of mf_family that all GPU families share. */
int mf_hip_open(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                const char *name, struct mf_kernel **ret);
struct mf_kernel *mf_hip_close(struct mf_kernel *k);
void mf_hip_set_token_count(struct mf_kernel *k, int64_t token);
struct mf_kernel *mf_hip_copy(const struct mf_kernel *k, void *stream, void *to);
int mf_hip_code(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *shape,
                const char *name, struct mf_code *ret);

/* Returns the largest unit, 16, 4 or 1 bytes, in which `bytes` bytes at these addresses can be moved. */
static inline int mf_hip_unit(const void *from, const void *to, size_t bytes)
{
    uintptr_t all = (uintptr_t)from | (uintptr_t)to | (uintptr_t)bytes;

    return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
}
static inline int mf_hip_launch(const struct mf_hip_function *f, const struct mf_grid *grid, const void *args,
                                size_t bytes)
{
    return f->device->ops->module_launch(f->device, f->function, grid, args, bytes, *f->stream);
}
