/* The emulator's matrix instructions by their maps: products with identity matrices on their way through LDS, and the
 * registers of each lane by the formulas of the PTX ISA, written here from an element to where it lies. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/cleanup.h"
#include "emulator/device_emulated.h"
#include "kernels/family_hip.h"
#include "mf_check.h"

#define WAVE      32
#define ROWS      16
#define COLS      8
#define ROW_BYTES 32

enum format { BF16, F16, FP8, N_FORMATS };
static const size_t element_bytes[N_FORMATS] = {2, 2, 1};

/* Bits of a whole number from 0 to 15 times 2^-3 to 2^0, which every format holds. */
static uint32_t bits_of(enum format f, int number, int power)
{
    float v = ldexpf((float)number, power);
    uint32_t bits, shift = f == BF16 ? 16 : f == F16 ? 13 : 20, bias = f == BF16 ? 0 : f == F16 ? 112 : 120;

    memcpy(&bits, &v, 4);
    return number == 0 ? 0 : (bits - (bias << 23)) >> shift;
}

static float value_of(int number, int power)
{
    return ldexpf((float)number, power);
}

struct matrix {
    int numbers[ROWS][ROW_BYTES], powers[ROWS][ROW_BYTES]; /* along K */
    _Alignas(16) uint8_t bytes[ROWS * ROW_BYTES];
};

static void put(struct matrix *m, enum format f, int row, int k, int number, int power)
{
    uint32_t bits = bits_of(f, number, power);
    m->numbers[row][k] = number;
    m->powers[row][k] = power;
    memcpy(m->bytes + row * ROW_BYTES + (size_t)k * element_bytes[f], &bits, element_bytes[f]);
}

/* Neighbours differ along both ways, and a row from every other. */
static void put_numbers(struct matrix *m, enum format f, int salt)
{
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < (int)(ROW_BYTES / element_bytes[f]); k++)
            put(m, f, r, k, (5 * r + 3 * k + k / 8 + salt) % 16, -((r + k / 5) % 4));
    }
}

/* One where the column is `from` on from the row. */
static void put_identity(struct matrix *m, enum format f, int from)
{
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < (int)(ROW_BYTES / element_bytes[f]); k++)
            put(m, f, r, k, k == r + from, 0);
    }
}

static struct mf_device *device;
static struct mf_hip_function products[N_FORMATS], registers;

static void setup(void)
{
    struct mf_code code = {.source = "registers.hip", .function = "mf_registers"};

    ck_assert_int_eq(mf_device_emulated_open(WAVE, 1, 5, &device), 0);
    ck_assert_int_eq(mf_hip_function_open(device, &code, &registers), 0);
    for (int f = 0; f < N_FORMATS; f++) {
        struct mf_code product = {.source = "products.hip", .function = "mf_product_of"};
        mf_code_define(&product, "MF_FORMAT=%d", f);
        ck_assert_int_eq(mf_hip_function_open(device, &product, &products[f]), 0);
    }
}

static void teardown(void)
{
    for (int f = 0; f < N_FORMATS; f++)
        mf_hip_function_close(&products[f]);
    mf_hip_function_close(&registers);
    device = mf_device_close(device);
}

static void launch(struct mf_hip_function *f, const void *args, size_t bytes)
{
    const struct mf_grid grid = {1, 1, 1, WAVE, 0};
    ck_assert_msg(mf_hip_launch(f, &grid, args, bytes) == 0, "%s", mf_device_emulated_why(device));
}

static void multiply(enum format f, const struct matrix *a, const struct matrix *b, float d[ROWS][COLS])
{
    const struct {
        const void *a, *b;
        float *d;
    } args = {a->bytes, b->bytes, &d[0][0]};

    mf_device_emulated_know(device, NULL, 0, false);
    mf_device_emulated_know(device, a->bytes, ROWS * ROW_BYTES, false);
    mf_device_emulated_know(device, b->bytes, COLS * ROW_BYTES, false);
    mf_device_emulated_know(device, d, ROWS * COLS * sizeof(float), true);
    launch(&products[f], &args, sizeof(args));
}

/* An identity that starts at each of K's eights picks those columns of the other operand, and nothing else. */
START_TEST(test_identity)
{
    enum format f = (enum format)_i;
    static struct matrix a, b;
    float d[ROWS][COLS];

    for (int from = 0; from < (int)(ROW_BYTES / element_bytes[f]); from += COLS) {
        put_numbers(&a, f, from);
        put_identity(&b, f, from);
        multiply(f, &a, &b, d);
        for (int i = 0; i < ROWS * COLS; i++) {
            int row = i / COLS, k = from + i % COLS;
            ck_assert(d[row][i % COLS] == value_of(a.numbers[row][k], a.powers[row][k]));
        }
        put_identity(&a, f, from);
        put_numbers(&b, f, from);
        multiply(f, &a, &b, d);
        for (int i = 0; i < ROWS * COLS; i++) {
            int col = i % COLS, k = from + i / COLS;
            bool within = k < (int)(ROW_BYTES / element_bytes[f]);
            ck_assert(d[i / COLS][col] == (within ? value_of(b.numbers[col][k], b.powers[col][k]) : 0.0f));
        }
    }
}
END_TEST

struct register_args {
    const uint32_t *in;
    uint32_t *out;
    int32_t multiply, unused;
};

static void use_registers(bool multiplies, const uint32_t *in, size_t n_in, void *out, size_t n_out)
{
    const struct register_args args = {in, out, multiplies, 0};

    mf_device_emulated_know(device, NULL, 0, false);
    mf_device_emulated_know(device, in, n_in * 4, false);
    mf_device_emulated_know(device, out, n_out * 4, true);
    launch(&registers, &args, sizeof(args));
}

/* Element (row, col) of matrix m is in register m of lane 4·row + col / 2, its half col % 2. */
START_TEST(test_ldmatrix)
{
    uint16_t rows[4][8][8], got[WAVE][6][2];

    for (int i = 0; i < 4 * 64; i++)
        rows[i / 64][i / 8 % 8][i % 8] = (uint16_t)(i * 257 + 3);
    use_registers(false, (const uint32_t *)&rows, sizeof(rows) / 4, got, sizeof(got) / 4);
    for (int i = 0; i < 4 * 64; i++) {
        int m = i / 64, row = i / 8 % 8, col = i % 8;
        ck_assert_uint_eq(got[row * 4 + col / 2][m][col % 2], rows[m][row][col]);
        if (m < 2)
            ck_assert_uint_eq(got[row * 4 + col / 2][4 + m][col % 2], rows[m][row][col]);
    }
}
END_TEST

/* One element of a at a time, all of b: row `row` of d is row k of b. a(row, k) is in register row / 8 + 2·(k / 8) of lane
 * 4·(row % 8) + k % 8 / 2, half k % 2; b(k, col) in register k / 8 of lane 4·col + k % 8 / 2, half k % 2; d(row, col) in
 * register 2·(row / 8) + col % 2 of lane 4·(row % 8) + col / 2. */
START_TEST(test_mma)
{
    for (int i = 0; i < ROWS * 16; i++) {
        uint16_t in[WAVE][6][2] = {0};
        int row = i / 16, k = i % 16;
        float d[WAVE][4];

        for (int j = 0; j < 16 * COLS; j++) {
            int at = j / COLS, col = j % COLS;
            in[4 * col + at % 8 / 2][4 + at / 8][at % 2] =
                (uint16_t)bits_of(BF16, (3 * at + 5 * col) % 15 + 1, 0);
        }
        in[4 * (row % 8) + k % 8 / 2][row / 8 + k / 8 * 2][k % 2] = (uint16_t)bits_of(BF16, 1, 0);
        use_registers(true, (const uint32_t *)&in, sizeof(in) / 4, d, sizeof(d) / 4);
        for (int j = 0; j < ROWS * COLS; j++) {
            int r = j / COLS, col = j % COLS;
            ck_assert(d[4 * (r % 8) + col / 2][2 * (r / 8) + col % 2] ==
                      (r == row ? (float)((3 * k + 5 * col) % 15 + 1) : 0.0f));
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("emulator maps");
    TCase *tests = tcase_create("maps");

    tcase_add_unchecked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, test_identity, 0, N_FORMATS);
    tcase_add_test(tests, test_ldmatrix);
    tcase_add_test(tests, test_mma);
    suite_add_tcase(suite, tests);
    return mf_check_main(suite);
}
