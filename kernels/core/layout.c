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
_Static_assert(MF_ARRAY_LEN(layouts) == MF_LAYOUTS_MAX, "the number in the header");

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

/* Where row n is stored among the rows. */
static size_t place_of_row(const struct mf_layout *l, size_t N, size_t n)
{
    if (l->gate_rows == 0)
        return n;
    size_t unit = (size_t)l->gate_rows, up = n >= N / 2, i = n - up * (N / 2);
    return i / unit * 2 * unit + up * unit + i % unit;
}

size_t mf_layout_index(const struct mf_layout *l, int element_bits, size_t N, size_t K, size_t n, size_t k)
{
    assert(n < N && k < K);
    size_t at = place_of_row(l, N, n);
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

bool mf_layout_takes_scales(const struct mf_layout *l, const struct mf_codec *c)
{
    return l->gate_rows == 0 || c->scale_bytes == 0 || c->group_rows <= 1;
}

enum mf_gate_up mf_layout_gate_up(const struct mf_layout *l)
{
    if (l->gate_rows == 0)
        return MF_GATE_UP_SEPARATED;
    return l->gate_rows == 1 ? MF_GATE_UP_INTERLEAVED : MF_GATE_UP_TILED;
}

/* One panel: rows of groups become columns. Tiles of 16 groups keep both sides within few cache lines. */
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

/* Byte `b` of the row that is stored at place `at`. */
static size_t place_of_byte(const struct mf_layout *l, size_t row_bytes, size_t at, size_t b)
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
        memcpy(ret + place_of_byte(to, row_bytes, to_at, b),
               elements + place_of_byte(from, row_bytes, from_at, b), group);
}

void mf_layout_convert(const struct mf_layout *from, const struct mf_layout *to, int element_bits, size_t N,
                       size_t K, const void *elements, void *ret)
{
    assert(mf_layout_legal(from, element_bits, N, K) && mf_layout_legal(to, element_bits, N, K));
    size_t row_bytes = (K * (size_t)element_bits + 7) / 8, panel = (size_t)to->panel;
    /* whole panels at once where their rows lie together on both sides, as between all layouts of ours and row */
    bool together = from->panel == 1 && from->gate_rows == 0 &&
                    (to->gate_rows == 0 || (size_t)to->gate_rows % panel == 0);
    for (size_t n = 0; n < N; n += together ? panel : 1) {
        size_t at = place_of_row(to, N, n);
        if (together && panel > 1)
            pack_panel(panel, (size_t)to->group_bytes, row_bytes / (size_t)to->group_bytes,
                       (const uint8_t *)elements + n * row_bytes, (uint8_t *)ret + at * row_bytes);
        else
            convert_row(from, to, row_bytes, place_of_row(from, N, n), at, elements, ret);
    }
}

void mf_layout_row(const struct mf_layout *l, int element_bits, size_t N, size_t K, size_t n,
                   const void *elements, void *ret)
{
    assert(mf_layout_legal(l, element_bits, N, K));
    convert_row(l, mf_layout_find("row"), (K * (size_t)element_bits + 7) / 8, place_of_row(l, N, n), 0,
                elements, ret);
}

/* Scales of single rows follow them; others, and what is of the whole, stay. */
static void convert_scales(const struct mf_layout *from, const struct mf_layout *to, const struct mf_codec *c,
                           size_t N, size_t K, const uint8_t *scales, uint8_t *ret)
{
    size_t rows = mf_codec_scale_rows(c, N), bytes = mf_codec_scale_cols(c, K) * (size_t)c->scale_bytes;
    bool follow = c->group_rows == 1;
    for (size_t n = 0; n < rows; n++)
        memcpy(ret + (follow ? place_of_row(to, N, n) : n) * bytes,
               scales + (follow ? place_of_row(from, N, n) : n) * bytes, bytes);
}

int mf_layout_convert_weight(const struct mf_shape *shape, const struct mf_tensor_spec *from,
                             const struct mf_tensor_spec *to, const struct mf_tensor_ref *expert,
                             const struct mf_tensor_ref *ret)
{
    struct mf_part parts[MF_PARTS_MAX];
    if (from->tensor != to->tensor || from->format != to->format || from->scale != to->scale ||
        mf_tensor_spec_parts(from, shape, parts) < 0 || mf_tensor_spec_parts(to, shape, parts) < 0)
        return -EINVAL;
    const struct mf_layout *a = mf_layout_find(from->order), *b = mf_layout_find(to->order);
    const struct mf_codec *c = mf_codec_find(to->format, to->scale);
    size_t N = (size_t)(parts[0].rows / shape->expert), K = (size_t)mf_tensor_spec_cols(to, shape);
    mf_layout_convert(a, b, c->bits, N, K, expert->part[0], ret->part[0]);
    if (c->scale_bytes > 0)
        convert_scales(a, b, c, N, K, expert->part[1], ret->part[1]);
    if (c->global)
        memcpy(ret->part[2], expert->part[2], sizeof(float));
    return 0;
}
