#include "kernels/core/layout.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"

static const struct mf_layout layouts[] = {
    {"row", "row", 1, 4, 0},     {"panel16", "p16", 16, 4, 0},        {"panel32", "p32", 32, 4, 0},
    {"gu1", "gu1", 1, 4, 1},     {"gu16_panel16", "gu16", 16, 4, 16}, {"gu32_panel32", "gu32", 32, 4, 32},
    {"gu16", "gu16r", 1, 4, 16}, {"panel128", "p128", 128, 128, 0},
};
_Static_assert(MF_ARRAY_LEN(layouts) == MF_LAYOUTS_MAX, "MF_LAYOUTS_MAX differs from the number of layouts");

const struct mf_layout *mf_layout_find(const char *name)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(layouts); i++) {
        if (strcmp(name, layouts[i].name) == 0)
            return &layouts[i];
    }
    return NULL;
}

const struct mf_layout *mf_layouts(size_t *ret_n)
{
    *ret_n = MF_ARRAY_LEN(layouts);
    return layouts;
}

/* Returns the position at which the layout stores row n. */
size_t mf_layout_stored_row(const struct mf_layout *l, size_t N, size_t n)
{
    if (l->gate_rows == 0)
        return n;
    size_t unit = (size_t)l->gate_rows, up = n >= N / 2, i = n - up * (N / 2);
    return i / unit * 2 * unit + up * unit + i % unit;
}

size_t mf_layout_index(const struct mf_layout *l, int element_bits, size_t N, size_t K, size_t n, size_t k)
{
    assert(n < N && k < K);
    size_t at = mf_layout_stored_row(l, N, n);
    if (l->panel == 1)
        return at * K + k;
    size_t panel = (size_t)l->panel, group = (size_t)(l->group_bytes * 8 / element_bits);
    return at / panel * panel * K + (k / group * panel + at % panel) * group + k % group;
}

bool mf_layout_legal(const struct mf_layout *l, int element_bits, size_t N, size_t K)
{
    if (l->gate_rows > 0 && N % (2 * (size_t)l->gate_rows) != 0)
        return false;
    if (l->panel == 1)
        return true;
    size_t group = (size_t)(l->group_bytes * 8 / element_bits);
    return group > 0 && N % (size_t)l->panel == 0 && K % group == 0;
}

bool mf_layout_supports_scales(const struct mf_layout *l, const struct mf_codec *c)
{
    return l->gate_rows == 0 || c->scale_bytes == 0 || c->group_rows <= 1;
}

enum mf_gate_up mf_layout_gate_up(const struct mf_layout *l)
{
    if (l->gate_rows == 0)
        return MF_GATE_UP_SEPARATED;
    return l->gate_rows == 1 ? MF_GATE_UP_INTERLEAVED : MF_GATE_UP_TILED;
}

/* Packs one panel: transposes the matrix of rows and K groups. Transposes 16 groups at a time, so that reads
 * and writes stay within few cache lines. */
static void pack_panel(size_t panel, size_t group, size_t n_groups, const uint8_t *from, uint8_t *to)
{
    for (size_t g0 = 0; g0 < n_groups; g0 += 16) {
        size_t g1 = MF_MIN(g0 + 16, n_groups);
        for (size_t r = 0; r < panel; r++) {
            for (size_t g = g0; g < g1; g++)
                memcpy(to + (g * panel + r) * group, from + (r * n_groups + g) * group, group);
        }
    }
}

/* Returns the offset of byte b of the row at storage position `at`. */
static size_t stored_byte(const struct mf_layout *l, size_t row_bytes, size_t at, size_t b)
{
    size_t panel = (size_t)l->panel, group = (size_t)l->group_bytes;
    return at / panel * panel * row_bytes + (b / group * panel + at % panel) * group + b % group;
}

static void convert_row(const struct mf_layout *from, const struct mf_layout *to, size_t row_bytes,
                        size_t from_at, size_t to_at, const uint8_t *elements, uint8_t *ret)
{
    if (from->panel == 1 && to->panel == 1) {
        memcpy(ret + to_at * row_bytes, elements + from_at * row_bytes, row_bytes);
        return;
    }
    size_t group = (size_t)MF_MIN(from->panel == 1 ? to->group_bytes : from->group_bytes,
                                  to->panel == 1 ? from->group_bytes : to->group_bytes);
    for (size_t b = 0; b < row_bytes; b += group)
        memcpy(ret + stored_byte(to, row_bytes, to_at, b),
               elements + stored_byte(from, row_bytes, from_at, b), group);
}

void mf_layout_convert(const struct mf_layout *from, const struct mf_layout *to, int element_bits, size_t N,
                       size_t K, const void *elements, void *ret)
{
    assert(mf_layout_legal(from, element_bits, N, K) && mf_layout_legal(to, element_bits, N, K));
    size_t row_bytes = (K * (size_t)element_bits + 7) / 8, panel = (size_t)to->panel;
    /* Whole panels are converted at once if each panel of `to` holds consecutive rows of `from`, which is so
     * in every conversion from `row`. */
    bool contiguous_panels = from->panel == 1 && from->gate_rows == 0 &&
                             (to->gate_rows == 0 || (size_t)to->gate_rows % panel == 0);
    for (size_t n = 0; n < N; n += contiguous_panels ? panel : 1) {
        size_t at = mf_layout_stored_row(to, N, n);
        if (contiguous_panels && panel > 1)
            pack_panel(panel, (size_t)to->group_bytes, row_bytes / (size_t)to->group_bytes,
                       (const uint8_t *)elements + n * row_bytes, (uint8_t *)ret + at * row_bytes);
        else
            convert_row(from, to, row_bytes, mf_layout_stored_row(from, N, n), at, elements, ret);
    }
}

void mf_layout_row(const struct mf_layout *l, int element_bits, size_t N, size_t K, size_t n,
                   const void *elements, void *ret)
{
    assert(mf_layout_legal(l, element_bits, N, K));
    convert_row(l, mf_layout_find("row"), (K * (size_t)element_bits + 7) / 8, mf_layout_stored_row(l, N, n),
                0, elements, ret);
}
