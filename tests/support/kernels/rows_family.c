/* A shared object with four steps, each of which covers the whole layer (examples/family_plain.c): a correct
 * step, the same step again, a correct step with four times the work, and a step that writes a wrong row.
 * run-config and compare must tell apart table rows with these steps, even on a busy machine. */
#define mf_family_entry plain_entry
#include "examples/family_plain.c"
#undef mf_family_entry

const struct mf_family *mf_family_entry(void);

static const char *const steps[] = {"right", "again", "slower", "wrong"};
enum { RIGHT, AGAIN, SLOWER, WRONG, N_STEPS };
enum { SLOWER_WORK = 4 }; /* factor of the work, compared with the correct step */

struct rows_kernel {
    struct mf_kernel *plain;
    int step;
};

struct renaming {
    struct mf_offer offer; /* must be the first member */
    struct mf_offer *to;
};

static int offer_each(struct mf_offer *o, const struct mf_step *step)
{
    struct mf_step own = *step;
    int r = 0;

    (void)snprintf(own.family, sizeof(own.family), "rows");
    for (int i = 0; i < N_STEPS && r == 0; i++) {
        (void)snprintf(own.name, sizeof(own.name), "%s", steps[i]);
        r = ((struct renaming *)o)->to->step(((struct renaming *)o)->to, &own);
    }
    return r;
}

static int enumerate_rows(const struct mf_family *f, const struct mf_device_info *device,
                          const struct mf_shape *s, struct mf_offer *offer)
{
    struct renaming renaming = {.offer = {offer_each, offer->reject}, .to = offer};

    return enumerate(f, device, s, &renaming.offer);
}

static int open_row(const struct mf_family *f, struct mf_device *device, const struct mf_shape *s,
                    const char *name, struct mf_kernel **ret)
{
    struct rows_kernel *k = calloc(1, sizeof(*k));
    int r = k ? open_step(f, device, s, STEP, &k->plain) : -ENOMEM;

    for (int i = 0; i < N_STEPS && r == 0; i++)
        k->step = strcmp(name, steps[i]) == 0 ? i : k->step;
    if (r < 0) {
        free(k);
        return r;
    }
    *ret = (struct mf_kernel *)k;
    return 0;
}

static int launch_row(struct mf_kernel *kernel, const struct mf_launch *l)
{
    struct rows_kernel *k = (struct rows_kernel *)kernel;
    int r = launch(k->plain, l);
    uint16_t *y = l->gives[0].part[0];

    for (int i = 1; i < SLOWER_WORK && k->step == SLOWER && r == 0; i++)
        r = launch(k->plain, l);
    for (int i = 0; i < k->plain->s.model_dim && k->step == WRONG; i++)
        y[i] = to_bf16(from_bf16(y[i]) * 1.02f);
    return r;
}

static struct mf_kernel *close_row(struct mf_kernel *kernel)
{
    struct rows_kernel *k = (struct rows_kernel *)kernel;

    close_step(k->plain);
    free(k);
    return NULL;
}

const struct mf_family *mf_family_entry(void)
{
    static const struct mf_family family = {
        .api = MF_FAMILY_API,
        .name = "rows",
        .device_kind = "cpu",
        .enumerate = enumerate_rows,
        .open = open_row,
        .launch = launch_row,
        .close = close_row,
    };
    (void)plain_entry;
    return &family;
}
