/* Helpers for simulated steps: formats and tensor specs of a shape, and the sizes that determine a step's
 * cost. */
#pragma once

#include "common/moe/shape.h"
#include "common/moe/step.h"
#include "common/moe/tensor_spec.h"
#include "kernels/core/device.h"
#include "kernels/core/family.h"

struct mf_sim_plan {
    const struct mf_shape *shape;
    const struct mf_device_info *device;
    struct mf_offer *offer;
    enum mf_format format_a, format_w;
    enum mf_scale scale_a, scale_w;
    bool quantised;  /* x and h are quantised to format_a */
    double rows, n1; /* T·k on this rank, and the number of columns of gemm1 */
    double active;   /* expected number of active experts with uniform routing */
};

struct mf_sim_plan mf_sim_plan_make(const struct mf_device_info *device, const struct mf_shape *shape,
                                    struct mf_offer *offer);

struct mf_tensor_spec mf_sim_tensor_spec(enum mf_tensor tensor, enum mf_format format, enum mf_scale scale,
                                         const char *order, int32_t block);
struct mf_tensor_spec mf_sim_x_plain(void);
struct mf_tensor_spec mf_sim_x(const struct mf_sim_plan *p);
struct mf_tensor_spec mf_sim_h(const struct mf_sim_plan *p, int32_t block_m, bool quantised);
struct mf_tensor_spec mf_sim_sorted(int32_t block_m);
struct mf_tensor_spec mf_sim_topk(void);
struct mf_tensor_spec mf_sim_y(bool zeroed);

void mf_sim_need(struct mf_step *step, struct mf_tensor_spec a);
void mf_sim_give(struct mf_step *step, struct mf_tensor_spec a);

double mf_sim_bytes(enum mf_dtype dtype, double elements);
/* Returns the bytes that are read if an n x k weight of each active expert is read once. */
double mf_sim_weight_bytes(const struct mf_sim_plan *p, double n, double k);
