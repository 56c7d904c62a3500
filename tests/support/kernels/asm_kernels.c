/* CPU kernels that tests use as prebuilt code objects. They read all arguments from the slots of the argument
 * block, like GPU kernels. The one-stage kernel adds its tile's contribution to y by compare-and-swap. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define SUB_M 16
#define SUB_N 32

void fmoe_test_one_silu_16x32(const void *block, size_t bytes, uint32_t x, uint32_t y, uint32_t z);
void fmoe_test_stage1_16x32(const void *block, size_t bytes, uint32_t x, uint32_t y, uint32_t z);

static void *address(const void *block, int slot)
{
    uint64_t v;
    memcpy(&v, (const char *)block + 16 * slot, sizeof(v));
    return (void *)(uintptr_t)v;
}

static uint32_t number(const void *block, int slot)
{
    uint32_t v;
    memcpy(&v, (const char *)block + 16 * slot, sizeof(v));
    return v;
}

static float from_bf16(uint16_t bits)
{
    uint32_t u = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float dot(const uint16_t *a, const uint16_t *b, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += from_bf16(a[i]) * from_bf16(b[i]);
    return sum;
}

static void add(uint16_t *at, float v)
{
    uint16_t old = __atomic_load_n(at, __ATOMIC_RELAXED), sum;
    do
        sum = to_bf16(from_bf16(old) + v);
    while (!__atomic_compare_exchange_n(at, &old, sum, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

/* Returns silu(gate) * up for one row and one column. Gate and up are rows of w1. */
static float gated(const uint16_t *row, const char *gate, uint32_t column, uint32_t inter, uint32_t stride,
                   uint32_t dim)
{
    float g = dot(row, (const uint16_t *)(gate + (size_t)column * stride), dim);
    float u = dot(row, (const uint16_t *)(gate + (size_t)(inter + column) * stride), dim);
    return g / (1 + expf(-g)) * u;
}

void fmoe_test_one_silu_16x32(const void *b, size_t bytes, uint32_t x, uint32_t y, uint32_t z)
{
    const int32_t *ids = address(b, 9), *experts = address(b, 11), *num_valid = address(b, 3);
    const float *weights = address(b, 10);
    uint32_t dim = number(b, 12), inter = number(b, 13), tokens = number(b, 14);
    if (bytes != 448 || z != 0 || address(b, 5) || address(b, 6) || address(b, 7))
        return; /* writes no output, which verification detects */
    for (uint32_t p = y * SUB_M; p < (y + 1) * SUB_M && p < (uint32_t)num_valid[0]; p++) {
        uint32_t token = (uint32_t)ids[p] & 0xffffff;
        float h[SUB_N];
        if (token >= tokens)
            continue;
        const uint16_t *row = (const uint16_t *)((const char *)address(b, 1) + (size_t)token * number(b, 16));
        const char *gate = (const char *)address(b, 2) + (size_t)experts[y] * number(b, 20);
        const char *down = (const char *)address(b, 4) + (size_t)experts[y] * number(b, 21);
        uint16_t *out = (uint16_t *)((char *)address(b, 0) + (size_t)token * number(b, 19));
        for (uint32_t i = 0; i < SUB_N; i++)
            h[i] = gated(row, gate, x * SUB_N + i, inter, number(b, 17), dim);
        for (uint32_t c = 0; c < dim; c++) {
            const uint16_t *w = (const uint16_t *)(down + (size_t)c * number(b, 18)) + x * SUB_N;
            float sum = 0;
            for (uint32_t i = 0; i < SUB_N; i++)
                sum += h[i] * from_bf16(w[i]);
            add(&out[c], sum * weights[p]);
        }
    }
}

void fmoe_test_stage1_16x32(const void *b, size_t bytes, uint32_t x, uint32_t y, uint32_t z)
{
    const int32_t *ids = address(b, 7), *experts = address(b, 8), *num_valid = address(b, 3);
    uint32_t inter = number(b, 10), tokens = number(b, 11), row_bytes = number(b, 15) / number(b, 19);
    if (bytes != 368 || z != 0 || address(b, 4) || address(b, 5))
        return;
    for (uint32_t p = y * SUB_M; p < (y + 1) * SUB_M && p < (uint32_t)num_valid[0]; p++) {
        uint32_t token = (uint32_t)ids[p] & 0xffffff;
        if (token >= tokens)
            continue;
        const uint16_t *row = (const uint16_t *)((const char *)address(b, 1) + (size_t)token * number(b, 13));
        const char *gate = (const char *)address(b, 2) + (size_t)experts[y] * number(b, 16);
        uint16_t *out = (uint16_t *)((char *)address(b, 0) + (size_t)p * row_bytes);
        for (uint32_t i = x * SUB_N; i < (x + 1) * SUB_N; i++)
            out[i] = to_bf16(gated(row, gate, i, inter, number(b, 14), number(b, 9)));
    }
}
