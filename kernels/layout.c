#include "kernels/layout.h"

#include <assert.h>
#include <string.h>

#include "common/cleanup.h"

static const struct mf_layout layouts[] = {
    {"row", 1, 4},
    {"panel16", 16, 4},
    {"panel32", 32, 4},
};

const struct mf_layout *mf_layout_find(const char *name)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(layouts); i++) {
        if (strcmp(name, layouts[i].name) == 0)
            return &layouts[i];
    }
    return NULL;
}

size_t mf_layout_index(const struct mf_layout *l, int element_bits, size_t N, size_t K, size_t n, size_t k)
{
    assert(n < N && k < K);
    if (l->panel == 1)
        return n * K + k;
    size_t panel = (size_t)l->panel, group = (size_t)(l->group_bytes * 8 / element_bits);
    size_t panel_at = n / panel * panel * K;
    return panel_at + (k / group * panel + n % panel) * group + k % group;
}

bool mf_layout_legal(const struct mf_layout *l, int element_bits, size_t N, size_t K)
{
    if (l->panel == 1)
        return true;
    size_t group = (size_t)(l->group_bytes * 8 / element_bits);
    return group > 0 && N % (size_t)l->panel == 0 && K % group == 0;
}

/* One panel: rows of 4-byte groups become columns. Tiles of 16 groups keep both sides within few cache lines. */
static void pack_panel(size_t panel, size_t n_groups, const uint8_t *from, uint8_t *to)
{
    for (size_t g0 = 0; g0 < n_groups; g0 += 16) {
        size_t g1 = MF_MIN(g0 + 16, n_groups);
        for (size_t r = 0; r < panel; r++) {
            for (size_t g = g0; g < g1; g++)
                memcpy(to + (g * panel + r) * 4, from + (r * n_groups + g) * 4, 4);
        }
    }
}

void mf_layout_pack(const struct mf_layout *l, int element_bits, size_t N, size_t K, const void *from,
                    void *to)
{
    assert(mf_layout_legal(l, element_bits, N, K) && l->group_bytes == 4);
    size_t row_bytes = (K * (size_t)element_bits + 7) / 8, panel = (size_t)l->panel;
    if (panel == 1) {
        memcpy(to, from, N * row_bytes);
        return;
    }
    for (size_t n = 0; n < N; n += panel)
        pack_panel(panel, row_bytes / 4, (const uint8_t *)from + n * row_bytes,
                   (uint8_t *)to + n * row_bytes);
}
