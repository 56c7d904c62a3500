#include "kernels/ops/shuffle.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

MF_NAMES_DEFINE(mf_shuffle, MF_SHUFFLE_, MF_SHUFFLE_MAP)

static size_t round_up(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

/* If `pads` is true, rows and columns are padded to multiples of these numbers. Otherwise the matrix must
 * have such multiples of rows and columns. */
struct granularity {
    size_t rows, cols;
    bool pads;
};

static struct granularity granularity_of(enum mf_shuffle s, const struct mf_shuffle_size *z)
{
    switch (s) {
    case MF_SHUFFLE_W16X16:
        return (struct granularity){16, 32, false};
    case MF_SHUFFLE_A16W4:
        return (struct granularity){16, 64, false};
    case MF_SHUFFLE_A16W4_GU:
        return (struct granularity){32, 64, false};
    case MF_SHUFFLE_A16W4_SCALE:
        return (struct granularity){64, 8, false};
    case MF_SHUFFLE_E8M0:
        return (struct granularity){256, 8, true};
    case MF_SHUFFLE_E8M0_1250:
        return (struct granularity){32, 4, true};
    case MF_SHUFFLE_NV_32_4_4:
        return (struct granularity){128, 4, true};
    case MF_SHUFFLE_NV_8_4:
        return (struct granularity){8, 4, true};
    case MF_SHUFFLE_N_:
        break;
    }
    return (struct granularity){z->rows, z->cols, false};
}

bool mf_shuffle_legal(enum mf_shuffle s, const struct mf_shuffle_size *z, char *why, size_t why_cap)
{
    struct granularity g = granularity_of(s, z);
    if (g.pads || (z->rows % g.rows == 0 && z->cols % g.cols == 0))
        return true;
    mf_format(why, why_cap,
              "%s requires multiples of %zu rows and %zu columns; %zu rows leave a remainder of %zu, %zu "
              "columns a remainder of %zu",
              mf_shuffle_name(s), g.rows, g.cols, z->rows, z->rows % g.rows, z->cols, z->cols % g.cols);
    return false;
}

size_t mf_shuffle_elements(enum mf_shuffle s, const struct mf_shuffle_size *z)
{
    struct granularity g = granularity_of(s, z);
    return round_up(z->rows, g.rows) * round_up(z->cols, g.cols);
}

/* K is divided into parts of 16 bytes, which have kp elements. */
static size_t index_16x16(const struct mf_shuffle_size *z, size_t n, size_t k)
{
    size_t kp = z->four_bit ? 32 : 16 / (size_t)z->element_bytes, parts = 32 / kp;
    return ((n / 16 * (z->cols / 32) + k / 32) * parts + k % 32 / kp) * 16 * kp + n % 16 * kp + k % kp;
}

/* The matrix, viewed as (N0, 16, K0, 4, 16), is stored as (N0, K0, 4, 16, 16). With gate and up, the view (2,
 * N0, …) is stored as (N0, 2, …). */
static size_t index_a16w4(const struct mf_shuffle_size *z, bool gate_up, size_t n, size_t k)
{
    size_t half = z->rows / 2, block = gate_up ? n % half / 16 * 2 + n / half : n / 16;
    return (((block * (z->cols / 64) + k / 64) * 4 + k % 64 / 16) * 16 + n % 16) * 16 + k % 16;
}

/* The matrix, viewed as (2, N1, 2, 16, K1, 2, 4), is stored as (N1, K1, 4, 16, 2, 2). The first dimension of
 * the view is gate and up. */
static size_t index_a16w4_scale(const struct mf_shuffle_size *z, size_t n, size_t k)
{
    size_t half = z->rows / 2, g = n / half, r = n % half;
    size_t n1 = r / 32, pair = r % 32 / 16, lane = r % 16, k1 = k / 8, kh = k % 8 / 4, k4 = k % 4;
    return ((((n1 * (z->cols / 8) + k1) * 4 + k4) * 16 + lane) * 2 + kh) * 2 + pair + g * (half * z->cols);
}

static size_t index_e8m0(size_t cols, size_t x, size_t y)
{
    return x / 32 * 32 * cols + y / 8 * 256 + y % 4 * 64 + x % 16 * 4 + y % 8 / 4 * 2 + x % 32 / 16;
}

size_t mf_shuffle_index(enum mf_shuffle s, const struct mf_shuffle_size *z, size_t row, size_t col)
{
    size_t cols = round_up(z->cols, granularity_of(s, z).cols);
    switch (s) {
    case MF_SHUFFLE_W16X16:
        return index_16x16(z, row, col);
    case MF_SHUFFLE_A16W4:
        return index_a16w4(z, false, row, col);
    case MF_SHUFFLE_A16W4_GU:
        return index_a16w4(z, true, row, col);
    case MF_SHUFFLE_A16W4_SCALE:
        return index_a16w4_scale(z, row, col);
    case MF_SHUFFLE_E8M0:
        return index_e8m0(cols, row, col);
    case MF_SHUFFLE_E8M0_1250:
        return ((row / 32 * (cols / 4) + col / 4) * 32 + row % 32) * 4 + col % 4;
    case MF_SHUFFLE_NV_32_4_4:
        return row / 128 * (cols / 4) * 512 + col / 4 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + col % 4;
    case MF_SHUFFLE_NV_8_4:
        return row / 8 * (cols / 4) * 32 + col / 4 * 32 + row % 8 * 4 + col % 4;
    case MF_SHUFFLE_N_:
        break;
    }
    return row * z->cols + col;
}

static void move(enum mf_shuffle s, const struct mf_shuffle_size *z, size_t experts, const uint8_t *from,
                 uint8_t *to, bool undo)
{
    size_t bytes = (size_t)z->element_bytes, plain = z->rows * z->cols * bytes;
    size_t shuffled = mf_shuffle_elements(s, z) * bytes;
    for (size_t e = 0; e < experts; e++) {
        const uint8_t *in = from + e * (undo ? shuffled : plain);
        uint8_t *out = to + e * (undo ? plain : shuffled);
        if (!undo)
            memset(out, s == MF_SHUFFLE_E8M0_1250 ? 0x7f : 0, shuffled);
        for (size_t r = 0; r < z->rows; r++) {
            for (size_t c = 0; c < z->cols; c++) {
                size_t at = mf_shuffle_index(s, z, r, c) * bytes, here = (r * z->cols + c) * bytes;
                memcpy(out + (undo ? here : at), in + (undo ? at : here), bytes);
            }
        }
    }
}

void mf_shuffle_apply(enum mf_shuffle s, const struct mf_shuffle_size *size, size_t experts, const void *from,
                      void *to)
{
    move(s, size, experts, from, to, false);
}

void mf_shuffle_undo(enum mf_shuffle s, const struct mf_shuffle_size *size, size_t experts, const void *from,
                     void *to)
{
    move(s, size, experts, from, to, true);
}

/* --- int4 --- */

static int8_t signed_nibble(uint32_t nibble)
{
    return (int8_t)(((int)(nibble & 15) ^ 8) - 8);
}

void mf_int4_pack_a16wi4(const int8_t v[8], uint8_t out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)((v[i + 4] & 15) << 4 | (v[i] & 15));
}

void mf_int4_unpack_a16wi4(const uint8_t in[4], int8_t v[8])
{
    for (int i = 0; i < 4; i++) {
        v[i] = signed_nibble(in[i]);
        v[i + 4] = signed_nibble(in[i] >> 4u);
    }
}

/* index of the value that each nibble holds, from the highest nibble on */
static const int w4a8_order[8] = {0, 2, 4, 6, 1, 3, 5, 7};

uint32_t mf_int4_pack_w4a8(const int8_t e[8])
{
    uint32_t word = 0;
    for (int i = 0; i < 8; i++)
        word = word << 4 | (uint32_t)(e[w4a8_order[i]] & 15);
    return word;
}

void mf_int4_unpack_w4a8(uint32_t word, int8_t e[8])
{
    for (int i = 7; i >= 0; i--, word >>= 4)
        e[w4a8_order[i]] = signed_nibble(word);
}

size_t mf_fp8fn_to_fnuz(uint8_t *codes, size_t n)
{
    size_t lost = 0;
    for (size_t i = 0; i < n; i++) {
        lost += (codes[i] & 0x7f) == 0x7f;
        codes[i] = codes[i] == 0x80 ? 0 : codes[i];
    }
    return lost;
}
