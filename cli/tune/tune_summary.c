/* Prints the outcome of every shape in the format of AITER's tuner. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/support/shape_arg.h"
#include "cli/support/text_out.h"
#include "cli/tune/tune.h"
#include "common/base/array.h"
#include "common/base/text.h"

void mf_tune_outcomes_release(struct mf_tune_outcomes *o)
{
    free(o->items);
    *o = (struct mf_tune_outcomes){.n = 0};
}

int mf_tune_outcomes_add(struct mf_tune_outcomes *o, const struct mf_device_class *class,
                         const struct mf_shape *shape)
{
    int r = mf_array_grow(&o->items, o->n, &o->cap, sizeof(*o->items));

    if (r < 0)
        return r;
    o->items[o->n++] = (struct mf_tune_outcome){.class = *class, .shape = *shape};
    return 0;
}

struct mf_tune_outcome *mf_tune_outcomes_find(const struct mf_tune_outcomes *o,
                                              const struct mf_device_class *class,
                                              const struct mf_shape *shape)
{
    for (size_t i = 0; i < o->n; i++) {
        if (mf_device_class_equal(&o->items[i].class, class) && mf_shape_equal(&o->items[i].shape, shape))
            return &o->items[i];
    }
    return NULL;
}

size_t mf_tune_outcomes_count(const struct mf_tune_outcomes *o, enum mf_tune_end end)
{
    size_t n = 0;

    for (size_t i = 0; i < o->n; i++)
        n += o->items[i].end == end;
    return n;
}

static void print_tuned(const struct mf_tune_outcomes *o, bool verbose, struct mf_buf *out)
{
    static const char *const header[] = {"class", "token", "shape", "us", "tflops", "bw", "table", "kernels"};
    struct mf_columns c;
    char text[MF_SHAPE_BRIEF_MAX];
    size_t n_columns = MF_ARRAY_LEN(header) - !verbose;

    mf_columns_init(&c, n_columns);
    for (size_t i = 0; i < n_columns; i++)
        mf_columns_add(&c, header[i]);
    for (size_t i = 0; i < o->n; i++) {
        const struct mf_tune_outcome *item = &o->items[i];
        if (item->end != MF_TUNE_TUNED)
            continue;
        mf_device_class_print(&item->class, text);
        mf_columns_add(&c, text);
        mf_columns_addf(&c, "%" PRId64, item->shape.token);
        mf_shape_brief_layer_model(&item->shape, text);
        mf_columns_add(&c, text);
        mf_columns_addf(&c, "%.4f", item->us);
        mf_columns_addf(&c, "%.2f", item->tflops);
        mf_columns_addf(&c, "%.2f", item->bw);
        mf_columns_add(&c, item->merge_status);
        if (verbose)
            mf_columns_add(&c, item->kernels);
    }
    mf_columns_print(&c, out);
    mf_columns_release(&c);
}

static void print_reasons(const struct mf_tune_outcomes *o, enum mf_tune_end end, struct mf_buf *out)
{
    for (size_t i = 0; i < o->n; i++) {
        const struct mf_tune_outcome *item = &o->items[i];
        char class[MF_DEVICE_CLASS_TEXT_MAX], shape[MF_SHAPE_BRIEF_MAX];
        if (item->end != end)
            continue;
        mf_device_class_print(&item->class, class);
        mf_shape_brief(&item->shape, shape);
        (void)mf_buf_addf(out, "%s  %s%s%s\n", class, shape, item->reason[0] ? ": " : "", item->reason);
    }
}

/* Lists the tuned rows whose time the farm did not accept. */
static void print_unstable(const struct mf_tune_outcomes *o, struct mf_buf *out)
{
    for (size_t i = 0; i < o->n; i++) {
        const struct mf_tune_outcome *item = &o->items[i];
        char class[MF_DEVICE_CLASS_TEXT_MAX], shape[MF_SHAPE_BRIEF_MAX];
        if (item->end != MF_TUNE_TUNED || !item->unstable[0])
            continue;
        mf_device_class_print(&item->class, class);
        mf_shape_brief(&item->shape, shape);
        (void)mf_buf_addf(out, "unstable time: %s  %s: %s\n", class, shape, item->unstable);
    }
}

/* Prints the failed rows in the columns of an untuned file, without device columns. AITER's file also has the
 * column gfx. Both programs can read the printed rows. */
static void print_repro(const struct mf_tune_outcomes *o, size_t n, struct mf_buf *out)
{
    (void)mf_buf_addf(out,
                      "\n============= Repro CSV (%zu failed shapes) =============\n"
                      "Copy the lines below into a CSV file to reproduce:\n",
                      n);
    for (size_t i = 0; i < MF_SHAPE_N_COLUMNS; i++)
        (void)mf_buf_addf(out, "%s%s", i ? "," : "", mf_shape_columns[i]);
    (void)mf_buf_adds(out, "\n");
    for (size_t i = 0; i < o->n; i++) {
        char row[MF_SHAPE_TEXT_MAX];
        if (o->items[i].end != MF_TUNE_FAILED)
            continue;
        mf_shape_print(&o->items[i].shape, row);
        (void)mf_buf_addf(out, "%s\n", row);
    }
}

void mf_tune_summary(const struct mf_tune_outcomes *o, const struct mf_tune_totals *t, struct mf_buf *out)
{
    size_t tuned = mf_tune_outcomes_count(o, MF_TUNE_TUNED),
           failed = mf_tune_outcomes_count(o, MF_TUNE_FAILED),
           remaining = mf_tune_outcomes_count(o, MF_TUNE_REMAINING);

    (void)mf_buf_addf(out,
                      "============= Tuning results Summary: ==============\n"
                      "Tuning %s. tune %zu shapes, total tuning time is %.4f seconds\n"
                      "Successfully tuned shapes: %zu\n",
                      t->status, tuned + failed, t->seconds, tuned);
    if (tuned > 0)
        print_tuned(o, t->verbose, out);
    print_unstable(o, out);
    (void)mf_buf_addf(out, "Failed shapes: %zu\n", failed);
    print_reasons(o, MF_TUNE_FAILED, out);
    (void)mf_buf_addf(out, "untuned shapes: %zu\n", remaining);
    print_reasons(o, MF_TUNE_REMAINING, out);
    if (t->n_unreadable > 0)
        (void)mf_buf_addf(out, "unreadable rows: %zu\n", t->n_unreadable);
    if (failed > 0)
        print_repro(o, failed, out);
    if (failed + remaining + t->n_unreadable > 0)
        (void)mf_buf_adds(out,
                          "[Tuning not Finished] some shapes are not tuned or all failed; the reasons are "
                          "above, see also moefarm why and -o2\n");
}
