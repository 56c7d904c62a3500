#include "kernels/ops/shuffle.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/gpu/src/ops/ops_order.h"

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

void mf_shuffle_padded(enum mf_shuffle s, const struct mf_shuffle_size *z, long long *ret_rows,
                       long long *ret_cols)
{
    struct granularity g = granularity_of(s, z);
    *ret_rows = (long long)round_up(z->rows, g.rows);
    *ret_cols = (long long)round_up(z->cols, g.cols);
}

size_t mf_shuffle_elements(enum mf_shuffle s, const struct mf_shuffle_size *z)
{
    long long rows, cols;
    mf_shuffle_padded(s, z, &rows, &cols);
    return (size_t)(rows * cols);
}

_Static_assert(MF_ORDER_W16X16 == (int)MF_SHUFFLE_W16X16 && MF_ORDER_NV_8_4 == (int)MF_SHUFFLE_NV_8_4,
               "both enums list the orders in the same sequence");

size_t mf_shuffle_index(enum mf_shuffle s, const struct mf_shuffle_size *z, size_t row, size_t col)
{
    const struct mf_op_matrix matrix = {
        .rows = (long long)z->rows,
        .cols = (long long)z->cols,
        .padded_cols = (long long)round_up(z->cols, granularity_of(s, z).cols),
        .element_bytes = z->element_bytes,
        .four_bit = z->four_bit,
    };
    return (size_t)mf_order_index((int)s, &matrix, (long long)row, (long long)col);
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
