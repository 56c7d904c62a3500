#include "kernels/sim/sim.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/sim/sim_spec.h"

/* Speed of 8-bit and 4-bit formats, relative to bf16. */
#define FP8_SPEED 2.0

struct sim_device {
    /* must be the first member, because mf_device pointers are cast to this struct */
    struct mf_device device;
    struct mf_sim_spec spec;
};

/* Peak bf16 TFLOP/s, HBM bandwidth in TB/s and HBM size in GiB, from the vendors' data sheets. For other
 * classes, the values are proportional to the number of CUs. */
/* clang-format off */
static const struct part {
    const char *class, *model;
    double tflops, tbs;
    int memory_gib;
} parts[] = {
    {"gfx942/304", "simulated MI300X", 1307, 5.3, 192},
    {"gfx942/80",  "simulated MI308X",  188, 5.3, 192},
    {"gfx950/256", "simulated MI355X", 2517, 8.0, 288},
    {"sm_90/132",  "simulated H100",    989, 3.35, 80},
};
/* clang-format on */

static void describe(struct mf_device_info *info, const struct mf_device_class *class)
{
    char text[MF_DEVICE_CLASS_TEXT_MAX];
    mf_device_class_print(class, text);
    double tflops = 2.0 * class->cu_num, tbs = 0.01 * class->cu_num;
    int memory = 64;
    mf_format(info->model, sizeof(info->model), "simulated %s", class->gfx);
    for (size_t i = 0; i < MF_ARRAY_LEN(parts); i++) {
        if (strcmp(parts[i].class, text) != 0)
            continue;
        tflops = parts[i].tflops;
        tbs = parts[i].tbs;
        memory = parts[i].memory_gib;
        (void)mf_copy(info->model, sizeof(info->model), parts[i].model);
    }
    info->class = *class;
    (void)mf_copy(info->isa, sizeof(info->isa), "none");
    (void)mf_copy(info->compiler, sizeof(info->compiler), "none");
    info->memory_bytes = (uint64_t)memory << 30;
    info->llc_bytes = UINT64_C(256) << 20;
    info->cores = class->cu_num;
    info->peak_gflops_bf16 = tflops * 1e3;
    info->peak_gflops_fp8 = FP8_SPEED * tflops * 1e3;
    info->peak_gflops_f32 = tflops * 1e3 / 8;
    info->mem_read_gbs = tbs * 1e3;
    info->gap_us = 1.5;
    info->simulated = true;
}

static void sim_free(struct mf_device *d)
{
    struct sim_device *s = (struct sim_device *)d;
    mf_sim_spec_release(&s->spec);
    free(s);
}

static void *sim_alloc(struct mf_device *d, size_t bytes)
{
    (void)d;
    size_t rounded = (bytes + 4095) & ~(size_t)4095;
    void *memory = rounded >= bytes ? aligned_alloc(4096, rounded) : NULL;
    return memory ? memset(memory, 0, rounded) : NULL;
}

static void sim_release(struct mf_device *d, void *memory, size_t bytes)
{
    (void)d;
    (void)bytes;
    free(memory);
}

static int sim_copy(struct mf_device *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    memcpy(to, from, bytes);
    return 0;
}

/* Never called to time a step, because mf_sim_sample_us generates the samples of simulated steps. */
static int sim_time(struct mf_device *d, mf_launch_fn launch, void *context, int n, double *ret_us)
{
    (void)d;
    (void)launch;
    (void)context;
    (void)n;
    (void)ret_us;
    return -ENOTSUP;
}

static const struct mf_device_ops sim_ops = {
    .kind = "sim",
    .free = sim_free,
    .alloc = sim_alloc,
    .release = sim_release,
    .copy = sim_copy,
    .time = sim_time,
};

/* Parses sim:<class>:<ordinal>[:<spec>]. The path of the spec file may contain colons. */
static int parse_name(const char *name, struct mf_device_class *ret_class, const char **ret_spec)
{
    char class[MF_DEVICE_CLASS_TEXT_MAX], ordinal[8];
    if (strncmp(name, "sim:", 4) != 0)
        return -EINVAL;
    const char *at = name + 4;
    size_t n = strcspn(at, ":");
    if (n == 0 || n >= sizeof(class) || at[n] != ':')
        return -EINVAL;
    memcpy(class, at, n);
    class[n] = '\0';
    at += n + 1;
    n = strcspn(at, ":");
    if (n == 0 || n >= sizeof(ordinal))
        return -EINVAL;
    memcpy(ordinal, at, n);
    ordinal[n] = '\0';
    int64_t number;
    if (mf_parse_i64(ordinal, 0, 99999, &number) < 0 || mf_device_class_parse(class, ret_class) < 0)
        return -EINVAL;
    *ret_spec = at[n] == ':' ? at + n + 1 : NULL;
    return 0;
}

int mf_sim_open(const char *name, char *why, size_t why_cap, struct mf_device **ret)
{
    struct mf_device_class class;
    const char *spec;
    int r = parse_name(name, &class, &spec);
    if (r < 0) {
        mf_format(why, why_cap,
                  "invalid sim device '%s': expected sim:<class>:<ordinal>[:<spec file>], e.g. "
                  "sim:gfx942/304:0",
                  name);
        return r;
    }
    struct sim_device *s = calloc(1, sizeof(*s));
    if (!s) {
        mf_format(why, why_cap, "out of memory");
        return -ENOMEM;
    }
    s->device.ops = &sim_ops;
    describe(&s->device.info, &class);
    r = spec ? mf_sim_spec_load(spec, &s->spec, why, why_cap) : 0;
    if (r < 0) {
        sim_free(&s->device);
        return r;
    }
    *ret = &s->device;
    return 0;
}

enum mf_sim_fault mf_sim_fault_of(struct mf_device *device, const char *step_name)
{
    return mf_sim_spec_hit(&((struct sim_device *)device)->spec, step_name);
}

double mf_sim_factor_of(const struct mf_device *device, const char *step_name)
{
    return mf_sim_spec_factor(&((const struct sim_device *)device)->spec, step_name);
}

double mf_sim_disturbance_of(const struct mf_device *device, enum mf_sim_part part, int64_t token)
{
    return mf_sim_spec_disturb(&((const struct sim_device *)device)->spec, part, token);
}

int64_t mf_sim_step_ms(const struct mf_device *device)
{
    return ((const struct sim_device *)device)->spec.step_ms;
}

int64_t mf_sim_pipeline_ms(const struct mf_device *device)
{
    return ((const struct sim_device *)device)->spec.pipeline_ms;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Maps a hash to a number in (0, 1). */
static double uniform_of(uint64_t hash)
{
    return ((double)(mix(hash) >> 12) + 0.5) * 0x1p-52;
}

static uint64_t hash_of(const struct mf_shape *shape, const char *name, uint64_t seed)
{
    char text[MF_SHAPE_TEXT_MAX];
    mf_shape_print(shape, text);
    return mf_hash64(name, strlen(name), mf_hash64(text, strlen(text), MF_HASH_SEED ^ seed));
}

/* Returns the ratio of the rows that the GEMMs process, including padding, to the rows without padding. */
static double padding_of(const struct mf_shape *shape, int32_t block_m)
{
    double rows = (double)(shape->token * shape->topk) * mf_shape_local_fraction(shape);
    double miss = 1.0 - (double)shape->topk / mf_shape_global_experts(shape);
    double active = shape->expert * (1.0 - pow(miss, (double)shape->token));
    active = active < 1 ? 1 : active;
    double block = block_m > 0 ? block_m : 1;
    return active * ceil(rows / active / block) * block / rows;
}

static double format_speed(const struct mf_shape *shape)
{
    return mf_dtype_bits(shape->q_dtype_a) <= 8 ? FP8_SPEED : 1;
}

double mf_sim_step_us(const struct mf_device_info *device, const struct mf_shape *shape,
                      const struct mf_step *step)
{
    uint64_t h = hash_of(shape, step->name, 0x51);
    double efficiency = 0.35 + 0.5 * uniform_of(h);
    double bandwidth = 0.5 + 0.4 * uniform_of(h + 1);
    double flops = step->flops * (step->block_m > 0 ? padding_of(shape, step->block_m) : 1);
    double compute = flops / (device->peak_gflops_bf16 * 1e3 * format_speed(shape) * efficiency);
    double memory = step->bytes / (device->mem_read_gbs * 1e3 * bandwidth);
    return 2.0 + fmax(compute, memory) + 0.2 * fmin(compute, memory);
}

uint64_t mf_sim_noise(uint64_t seed, const struct mf_shape *shape, const char *name)
{
    return hash_of(shape, name, seed);
}

double mf_sim_sample_us(double us, uint64_t noise, int64_t index)
{
    uint64_t h = mix(noise ^ mix((uint64_t)index + 1));
    double normal = sqrt(-2.0 * log(uniform_of(h))) * cos(2.0 * M_PI * uniform_of(h + 1));
    double sample = us * exp(0.02 * normal);
    return uniform_of(h + 2) < 0.01 ? 1.2 * sample : sample;
}
