/* What the families of GPUs share: which shapes they know, and a kernel's way from its source to a launch.
 *
 * A family says for each step which source it is under which definitions (mf_family.code); that needs no GPU, so a cache can
 * be filled anywhere. Opening a step has the device compile it or find it, and loads it. */
#pragma once

#include "kernels/core/codec.h"
#include "kernels/core/family.h"
#include "kernels/families/family_cpu.h"

/* MF_FORMAT of the sources of tile and one (kernels/gpu/src/format.h); NARROW: mx and wint4 have a source of their own. */
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
/* Scales of 1x128, with weights' of 128x128. */
static inline bool mf_hip_by_block(enum mf_hip_format f)
{
    return f == MF_HIP_FP8_BLOCK || f == MF_HIP_INT8_BLOCK;
}

/* What the kernels have to know of an architecture. Bytes of LDS: that one block may have, that all blocks of a unit share,
 * and that each of them costs beside its own. */
struct mf_hip_machine {
    const char *gfx; /* "gfx942"; "sm_" for whatever begins so and has a number */
    int least;       /* of that number */
    int wave;        /* lanes */
    int shared_block, shared_unit, shared_extra;
    bool fp8;         /* there are words for e4m3fn */
    bool fnuz;        /* and for e4m3fnuz */
    bool copies_held; /* copies wait in registers (MF_COPY_HELD of kernels/gpu/src/tile.hip) */
};
/* NULL: no kernel is written for the device. */
const struct mf_hip_machine *mf_hip_machine_of(const struct mf_device_info *device);

/* Whether the GPU kernels of one family of two stages know the shape, and the device: tile has 16- and 8-bit weights, mx
 * microscaled ones, wint4 int4. ret_format may be NULL. */
bool mf_hip_family_takes(const char *family, const struct mf_device_info *device,
                         const struct mf_shape *shape, enum mf_hip_format *ret_format,
                         struct mf_refusal *ret);

/* As many blocks as are on the device at once, `blocks` of a unit or as many as its LDS holds. */
struct mf_grid mf_hip_persistent_grid(const struct mf_device_info *device, int threads, int blocks,
                                      uint32_t shared);

/* The same of what moves and quantises its rows: any format of activations that the device has the words for. */
bool mf_hip_rows_known(const struct mf_device_info *device, const struct mf_shape *shape,
                       struct mf_refusal *ret);

/* MF_FNUZ of kernels/gpu/src/dialect.h, where the shape's format is. */
void mf_hip_define_fnuz(struct mf_code *c, const struct mf_shape *shape);

/* The layout of w1 that the kernels read: of the shape's that says none, all rows of gate first. */
const struct mf_layout *mf_hip_w1_layout(const struct mf_shape *shape);
/* MF_GATE_ROWS of kernels/gpu/src/gate_up.h, where they lie in turn. */
void mf_hip_define_gate_up(struct mf_code *c, const struct mf_shape *shape);
/* Weights in slices lie as panel128. Are there kernels for the device that read them, and is there such a w1 or w2 of the shape? */
bool mf_hip_reads_slices(const struct mf_device_info *device);
bool mf_hip_may_slice(const struct mf_shape *shape, enum mf_tensor w, struct mf_refusal *ret);
/* The layout's name, as tensor specs have it, and its word in names of steps, "" for row. */
const char *mf_hip_weights_order(const struct mf_shape *shape, enum mf_tensor w, bool sliced);
const char *mf_hip_weights_word(const struct mf_shape *shape, enum mf_tensor w, bool sliced);

/* MF_E, and MF_FIRST of a rank's share (kernels/gpu/src/move/share.h). */
void mf_hip_define_share(struct mf_code *c, const struct mf_shape *shape);

/* MF_ELEMENT, MF_GROUP of kernels/gpu/src/encode.h, and MF_FNUZ. */
void mf_hip_define_codec(struct mf_code *c, const struct mf_codec *codec);

/* MF_ACT, MF_LIMIT, MF_ALPHA of kernels/gpu/src/activation.h. */
void mf_hip_define_activation(struct mf_code *c, const struct mf_shape *shape);

/* y that a step adds into. */
struct mf_tensor_spec mf_hip_zeroed_y(void);

/* A function ready to launch. */
struct mf_hip_function {
    struct mf_device *device;
    struct mf_module *module;
    void *function;
};
/* -ENOTSUP when the code does not compile for the device or does not load; the words go to the log. */
int mf_hip_function_open(struct mf_device *device, const struct mf_code *code, struct mf_hip_function *ret);
/* Another one of the same code, which lives as long as that one. -errno as module_function. */
int mf_hip_function_beside(const struct mf_hip_function *opened, const char *name,
                           struct mf_hip_function *ret);
void mf_hip_function_close(struct mf_hip_function *f);
/* A family's kernel of so many bytes, whose first member is its function: opened, the rest zero. */
int mf_hip_kernel_new(struct mf_device *device, const struct mf_code *code, size_t size,
                      struct mf_kernel **ret);
/* mf_family.close of all of them. */
struct mf_kernel *mf_hip_kernel_close(struct mf_kernel *k);
static inline int mf_hip_launch(const struct mf_hip_function *f, const struct mf_grid *grid, const void *args,
                                size_t bytes)
{
    return f->device->ops->module_launch(f->device, f->function, grid, args, bytes);
}
