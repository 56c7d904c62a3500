#include "cli/coverage/triton_coverage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/text.h"

void mf_triton_coverage_release(struct mf_triton_coverage *c)
{
    free(c->uses);
    free(c->spans);
    *c = MF_TRITON_COVERAGE_INIT;
}

/* ---- the splits that read a file ---- */

static bool reads(const struct mf_triton_query *q, const struct mf_model_split *split,
                  const struct mf_triton_file *f)
{
    struct mf_triton_key key;
    struct mf_shape layer;
    char why[MF_REASON_MAX];

    if (mf_model_layer(q->model, split, &layer, why) < 0 ||
        mf_triton_key(f->framework, &layer, f->key.device, &key, why) < 0)
        return false;
    key.down = f->key.down;
    return mf_triton_key_differences(&key, &f->key) == 0;
}

/* Finds a split of the model that reads the file. Tries splits without fused shared experts first, and of
 * these the splits without expert parallelism. */
static void find_split(const struct mf_triton_query *q, struct mf_triton_use *use)
{
    static const int32_t ranks[] = {1, 2, 4, 8, 16, 32, 64};

    for (int32_t fused = 0; fused <= q->model->shared; fused++) {
        for (size_t e = 0; e < MF_ARRAY_LEN(ranks); e++) {
            for (size_t t = 0; t < MF_ARRAY_LEN(ranks); t++) {
                const struct mf_model_split split = {ranks[t], ranks[e], fused, q->split.gfx};

                if (!reads(q, &split, use->file))
                    continue;
                use->read_with = split;
                return;
            }
        }
    }
}

/* ---- the files ---- */

static struct mf_triton_use look_at(const struct mf_triton_query *q, const struct mf_triton_key *key,
                                    const struct mf_triton_file *f)
{
    struct mf_triton_use use = {.file = f, .other_framework = f->framework != q->framework};
    struct mf_triton_key wanted = *key;
    char name[MF_TRITON_NAME_MAX];

    if (!f->has_key) {
        use.misspelt = true;
        return use;
    }
    wanted.down = f->key.down && q->framework == MF_FRAMEWORK_SGLANG;
    use.differs = mf_triton_key_differences(&f->key, &wanted);
    use.misspelt = !mf_triton_key_names(q->framework, &f->key, f->path, name);
    if (use.differs)
        find_split(q, &use);
    return use;
}

static bool is_read(const struct mf_triton_use *use)
{
    return use->differs == 0 && !use->other_framework && !use->misspelt;
}

/* Orders versions such as "3.10.0" and "3.9.1". */
static int compare_versions(const char *a, const char *b)
{
    int x[3] = {0}, y[3] = {0};

    (void)sscanf(a, "%d.%d.%d", &x[0], &x[1], &x[2]);
    (void)sscanf(b, "%d.%d.%d", &y[0], &y[1], &y[2]);
    for (int i = 0; i < 3; i++) {
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    }
    return 0;
}

/* Chooses the file for one GEMM: SGLang takes the newest version if its own Triton version has no file. */
static const struct mf_triton_use *choose(const struct mf_triton_coverage *c, bool down)
{
    const struct mf_triton_use *best = NULL;

    for (size_t i = 0; i < c->n_uses; i++) {
        const struct mf_triton_use *use = &c->uses[i];

        if (is_read(use) && use->file->key.down == down &&
            (!best || compare_versions(use->file->version, best->file->version) > 0))
            best = use;
    }
    return best;
}

static int find_spans(struct mf_triton_coverage *c)
{
    size_t cap = 0;

    for (int64_t token = 1; c->up && token <= MF_TRITON_COVERAGE_TOKENS; token++) {
        const struct mf_triton_entry *e = mf_triton_file_nearest(c->up->file, token);

        if (c->n_spans > 0 && c->spans[c->n_spans - 1].entry == e) {
            c->spans[c->n_spans - 1].last = token;
            continue;
        }
        if (!e)
            return 0;
        if (mf_array_grow(&c->spans, c->n_spans, &cap, sizeof(*c->spans)) < 0)
            return -ENOMEM;
        c->spans[c->n_spans++] = (struct mf_triton_span){token, token, e};
    }
    return 0;
}

int mf_triton_coverage_find(const struct mf_triton_query *q, struct mf_triton_coverage *ret,
                            char why[MF_REASON_MAX])
{
    struct mf_triton_coverage c = MF_TRITON_COVERAGE_INIT;
    int r = mf_triton_key(q->framework, &q->layer, q->device, &c.key, why);

    if (r < 0)
        return r;
    c.uses = calloc(q->n_files + 1, sizeof(*c.uses));
    if (!c.uses)
        return -ENOMEM;
    for (size_t i = 0; i < q->n_files; i++)
        c.uses[c.n_uses++] = look_at(q, &c.key, q->files[i]);
    c.up = choose(&c, false);
    c.down = q->framework == MF_FRAMEWORK_SGLANG ? choose(&c, true) : NULL;
    r = find_spans(&c);
    if (r < 0)
        mf_triton_coverage_release(&c);
    else
        *ret = c;
    return r;
}
