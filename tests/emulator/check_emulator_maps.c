/* Register maps of the emulator's matrix instructions, checked in two ways: with products of identity
 * matrices that are loaded through LDS, and by comparing the registers of each lane with the formulas of the
 * PTX ISA and of AMD's matrix instruction calculator. Here the formulas map an element to its register; the
 * emulator implements the inverse. */
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "emulator/device_emulated.h"
#include "kernels/families/family_hip.h"
#include "support/mf_check.h"

#define ROWS          16
#define COLS_MAX      16
#define ROW_BYTES_MAX 64

enum format { BF16, F16, FP8, FNUZ, S8 }; /* MF_FORMAT of products.hip */
static const size_t element_bytes[] = {[BF16] = 2, [F16] = 2, [FP8] = 1, [FNUZ] = 1, [S8] = 1};

static const struct flavour {
    const char *gfx;
    enum format format;
    int wave, cols, row_bytes;
} flavours[] = {
    {"sm_89", BF16, 32, 8, 32},   /* */
    {"sm_89", F16, 32, 8, 32},    /* */
    {"sm_89", FP8, 32, 8, 32},    /* converted to f16 */
    {"gfx90a", BF16, 64, 16, 64}, /* */
    {"gfx90a", F16, 64, 16, 64},  /* */
    {"gfx90a", FP8, 64, 16, 64},  /* converted to f16 */
    {"gfx942", FNUZ, 64, 16, 64}, /* */
    {"sm_89", S8, 32, 8, 32},     /* */
    {"gfx90a", S8, 64, 16, 64},   /* */
    {"gfx942", S8, 64, 16, 64},   /* */
};

static int elements(const struct flavour *f)
{
    return f->row_bytes / (int)element_bytes[f->format];
}

/* ---- matrices of values that every format can represent: 0 to 15, times 2^-3 to 2^0, or for int8 times 2^0
 * to 2^3 ---- */

static uint32_t bits_of(enum format f, float v)
{
    static const uint32_t shift[] = {[BF16] = 16, [F16] = 13, [FP8] = 20, [FNUZ] = 20};
    static const uint32_t bias[] = {
        [BF16] = 0, [F16] = 112, [FP8] = 120, [FNUZ] = 119}; /* float's exponent bias minus the format's */
    uint32_t bits;

    if (f == S8)
        return (uint8_t)(int8_t)v;
    memcpy(&bits, &v, 4);
    return v == 0 ? 0 : (bits - (bias[f] << 23)) >> shift[f];
}

struct matrix {
    float values[ROWS][ROW_BYTES_MAX]; /* along K */
    _Alignas(16) uint8_t bytes[ROWS * ROW_BYTES_MAX];
};

static void put(struct matrix *m, const struct flavour *f, int row, int k, float v)
{
    size_t bytes = element_bytes[f->format];
    uint32_t bits = bits_of(f->format, v);
    m->values[row][k] = v;
    memcpy(m->bytes + row * f->row_bytes + (size_t)k * bytes, &bits, bytes);
}

/* Neighbouring elements differ in both directions, and all rows differ. */
static void put_numbers(struct matrix *m, const struct flavour *f, int salt)
{
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < elements(f); k++)
            put(m, f, r, k,
                ldexpf((float)((5 * r + 3 * k + k / 8 + salt) % 16),
                       (f->format == S8 ? 3 : 0) - (r + k / 5) % 4));
    }
}

/* Element (r, k) is 1 where k == r + from, otherwise 0. */
static void put_identity(struct matrix *m, const struct flavour *f, int from)
{
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < elements(f); k++)
            put(m, f, r, k, k == r + from ? 1.0f : 0.0f);
    }
}

/* ---- launches ---- */

static struct mf_device *device;
static struct mf_hip_function function;

static void open_function(const struct flavour *f, const char *source, const char *name)
{
    struct mf_code code = {.source = source, .function = name};

    mf_code_define(&code, "MF_FORMAT=%d", (int)f->format);
    if (f->format == FNUZ)
        mf_code_define(&code, "MF_FNUZ");
    ck_assert_int_eq(mf_device_emulated_open(f->gfx, 1, 5, &device), 0);
    ck_assert_int_eq(mf_hip_function_open(device, &code, &function), 0);
}

static void close_function(void)
{
    mf_hip_function_close(&function);
    device = mf_device_close(device);
}

static void launch(const struct flavour *f, const void *args, size_t bytes)
{
    const struct mf_grid grid = {1, 1, 1, (uint32_t)f->wave, 0, false, false};
    ck_assert_msg(mf_hip_launch(&function, &grid, args, bytes) == 0, "%s", mf_device_emulated_why(device));
}

static void multiply(const struct flavour *f, const struct matrix *a, const struct matrix *b, float *d)
{
    const struct {
        const void *a, *b;
        float *d;
    } args = {a->bytes, b->bytes, d};

    mf_device_emulated_allow(device, NULL, 0, false);
    mf_device_emulated_allow(device, a->bytes, (size_t)(ROWS * f->row_bytes), false);
    mf_device_emulated_allow(device, b->bytes, (size_t)(f->cols * f->row_bytes), false);
    mf_device_emulated_allow(device, d, (size_t)(ROWS * f->cols) * sizeof(float), true);
    launch(f, &args, sizeof(args));
}

/* If one operand is an identity that starts at a multiple of 8 along K, the product has exactly these columns
 * of the other operand. */
MF_TEST(test_identity, .rows = MF_ARRAY_LEN(flavours))
{
    const struct flavour *f = &flavours[_i];
    static struct matrix a, b;
    float d[ROWS * COLS_MAX];

    open_function(f, "products.hip", "mf_product_of");
    for (int from = 0; from < elements(f); from += 8) {
        put_numbers(&a, f, from);
        put_identity(&b, f, from);
        multiply(f, &a, &b, d);
        for (int i = 0; i < ROWS * f->cols; i++) {
            int k = from + i % f->cols;
            ck_assert(d[i] == (k < elements(f) ? a.values[i / f->cols][k] : 0.0f));
        }
        put_identity(&a, f, from);
        put_numbers(&b, f, from);
        multiply(f, &a, &b, d);
        for (int i = 0; i < ROWS * f->cols; i++) {
            int k = from + i / f->cols;
            ck_assert(d[i] == (k < elements(f) ? b.values[i % f->cols][k] : 0.0f));
        }
    }
    close_function();
}

/* ---- registers ---- */

static void use_registers(const struct flavour *f, bool multiplies, const uint32_t *in, size_t n_in,
                          void *out, size_t n_out)
{
    const struct {
        const uint32_t *in;
        uint32_t *out;
        int32_t multiply, unused;
    } args = {in, out, multiplies, 0};

    mf_device_emulated_allow(device, NULL, 0, false);
    mf_device_emulated_allow(device, in, n_in * 4, false);
    mf_device_emulated_allow(device, out, n_out * 4, true);
    launch(f, &args, sizeof(args));
}

/* Element (row, col) of matrix m is in register m of lane 4·row + col / 2, half col % 2. */
MF_TEST(test_ldmatrix)
{
    const struct flavour *f = &flavours[0];
    uint16_t rows[4][8][8], got[32][6][2];

    open_function(f, "registers.hip", "mf_registers");
    for (int i = 0; i < 4 * 64; i++)
        rows[i / 64][i / 8 % 8][i % 8] = (uint16_t)(i * 257 + 3);
    use_registers(f, false, (const uint32_t *)&rows, sizeof(rows) / 4, got, sizeof(got) / 4);
    for (int i = 0; i < 4 * 64; i++) {
        int m = i / 64, row = i / 8 % 8, col = i % 8;
        ck_assert_uint_eq(got[row * 4 + col / 2][m][col % 2], rows[m][row][col]);
        if (m < 2)
            ck_assert_uint_eq(got[row * 4 + col / 2][4 + m][col % 2], rows[m][row][col]);
    }
    close_function();
}

struct place {
    int lane, reg, part; /* half or byte of the register */
};

/* mma.m16n8k16 */
static struct place nvidia_a(int row, int k)
{
    return (struct place){4 * (row % 8) + k % 8 / 2, row / 8 + k / 8 * 2, k % 2};
}
static struct place nvidia_b(int k, int col)
{
    return (struct place){4 * col + k % 8 / 2, k / 8, k % 2};
}
static struct place nvidia_d(int row, int col)
{
    return (struct place){4 * (row % 8) + col / 2, 2 * (row / 8) + col % 2, 0};
}

/* mma.m16n8k32 */
static struct place nvidia_s8_a(int row, int k)
{
    return (struct place){4 * (row % 8) + k % 16 / 4, row / 8 + k / 16 * 2, k % 4};
}
static struct place nvidia_s8_b(int k, int col)
{
    return (struct place){4 * col + k % 16 / 4, k / 16, k % 4};
}

/* v_mfma_f32_16x16x16_bf16_1k. The dialect primitive executes two of these instructions; the second
 * instruction uses the last two registers. */
static struct place amd_a(int row, int k)
{
    return (struct place){row + 16 * (k % 16 / 4), k / 16 * 2 + k % 4 / 2, k % 2};
}
static struct place amd_b(int k, int col)
{
    return amd_a(col, k);
}
static struct place amd_d(int row, int col)
{
    return (struct place){col + 16 * (row / 4), row % 4, 0};
}

/* v_mfma_i32_16x16x16i8, of which the dialect primitive executes four, and v_mfma_i32_16x16x32_i8, of which
 * it executes two. */
static struct place cdna2_s8_a(int row, int k)
{
    return (struct place){row + 16 * (k % 16 / 4), k / 16, k % 4};
}
static struct place cdna2_s8_b(int k, int col)
{
    return cdna2_s8_a(col, k);
}
static struct place cdna3_s8_a(int row, int k)
{
    return (struct place){row + 16 * (k % 32 / 8), k / 32 * 2 + k % 8 / 4, k % 4};
}
static struct place cdna3_s8_b(int k, int col)
{
    return cdna3_s8_a(col, k);
}

static const struct maps {
    const struct flavour *flavour;
    int depth, n_a, n_b; /* K; number of registers */
    struct place (*a)(int row, int k), (*b)(int k, int col), (*d)(int row, int col);
} maps[] = {
    {&flavours[0], 16, 4, 2, nvidia_a, nvidia_b, nvidia_d},
    {&flavours[3], 32, 4, 4, amd_a, amd_b, amd_d},
    {&flavours[7], 32, 4, 2, nvidia_s8_a, nvidia_s8_b, nvidia_d},
    {&flavours[8], 64, 4, 4, cdna2_s8_a, cdna2_s8_b, amd_d},
    {&flavours[9], 64, 4, 4, cdna3_s8_a, cdna3_s8_b, amd_d},
};

static void put_register(const struct maps *m, uint32_t *in, struct place p, float v)
{
    int bits = 8 * (int)element_bytes[m->flavour->format];

    in[p.lane * (m->n_a + m->n_b) + p.reg] |= bits_of(m->flavour->format, v) << bits * p.part;
}

/* One element of a at a time is 1, and b is full. Row `row` of d must equal row k of b, and all other rows
 * must be zero. */
MF_TEST(test_mma, .rows = MF_ARRAY_LEN(maps))
{
    const struct maps *m = &maps[_i];
    int cols = m->flavour->cols, wave = m->flavour->wave, n = m->n_a + m->n_b;

    open_function(m->flavour, "registers.hip", "mf_registers");
    for (int i = 0; i < ROWS * m->depth; i++) {
        uint32_t in[64 * 8] = {0};
        int row = i / m->depth, k = i % m->depth;
        float d[64 * 4];

        for (int j = 0; j < m->depth * cols; j++) {
            struct place p = m->b(j / cols, j % cols);
            p.reg += m->n_a;
            put_register(m, in, p, (float)((3 * (j / cols) + 5 * (j % cols)) % 15 + 1));
        }
        put_register(m, in, m->a(row, k), 1.0f);
        use_registers(m->flavour, true, in, (size_t)(wave * n), d, (size_t)wave * 4);
        for (int j = 0; j < ROWS * cols; j++) {
            struct place p = m->d(j / cols, j % cols);
            ck_assert(d[p.lane * 4 + p.reg] ==
                      (j / cols == row ? (float)((3 * k + 5 * (j % cols)) % 15 + 1) : 0.0f));
        }
    }
    close_function();
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
