#include "worker/runner/python_family.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/pipeline_search.h"
#include "common/table/aiter_row.h"
#include "common/table/triton/triton_key.h"
#include "measure/race/rotate.h"
#include "worker/runner/own_steps.h"
#include "worker/runner/python_enumerator.h"
#include "worker/runner/python_rows.h"
#include "worker/runner/python_tensors.h"

#define COMMAND_MAX 16
/* Maximum number of sets of addresses that a kernel is prepared for: one per rotation, and the first runs. */
#define ARGUMENTS_MAX (MF_ROTATIONS_MAX + 2)
#define ADDRESSES_MAX (2 * MF_STEP_TENSOR_SPECS_MAX * MF_PARTS_MAX + 1)

struct mf_python_family {
    struct mf_family family; /* must be the first member: enumerate and open receive only a pointer to it */
    char name[MF_FAMILY_NAME_MAX], kind[16], triton[MF_TRITON_VERSION_MAX], *device;
    uint64_t hash;
    int64_t id;
    const struct moefarm_runner_callbacks *callbacks;
    char *command[COMMAND_MAX + 1];
    struct mf_python_enumerator enumerator;
    struct mf_python_rows rows;
    struct mf_shape shape; /* shape for which `steps` were enumerated */
    struct mf_step *steps;
    size_t n_steps, cap_steps;
    void (*progress)(void *context); /* while `precompile` runs */
    void *progress_context;
};

/* A set of tensors that the kernel is prepared for. */
struct arguments {
    int64_t id; /* 0: this entry is free */
    uint64_t last_use;
    uintptr_t graph; /* captured launch; 0: none, so that each launch calls the family */
    const void *address[ADDRESSES_MAX];
};

struct mf_kernel {
    const struct mf_python_family *family;
    struct mf_device *device;
    int64_t id, last_arguments;
    struct mf_step step;
    struct mf_shape shape;
    struct arguments arguments[ARGUMENTS_MAX];
    uint64_t use_counter;
    char eager[256]; /* why launches cannot be captured; "": they can, or they run on a CPU */
};

/* ---- steps ---- */

struct collector {
    struct mf_offer offer; /* must be the first member, because take_step casts it */
    struct mf_python_family *family;
    struct mf_offer *to;
};

static int take_step(struct mf_offer *offer, const struct mf_step *step)
{
    struct collector *c = (struct collector *)offer;
    struct mf_python_family *f = c->family;
    if (f->n_steps == MF_OWN_STEPS_MAX)
        return -EFBIG;
    int r = mf_array_grow(&f->steps, f->n_steps, &f->cap_steps, sizeof(*f->steps));
    if (r < 0)
        return r;
    f->steps[f->n_steps++] = *step;
    return c->to->step(c->to, step);
}

__attribute__((format(printf, 5, 6))) static int take_reject(struct mf_offer *offer, const char *family,
                                                             const char *kernel, const char *rule,
                                                             const char *format, ...)
{
    struct mf_offer *to = ((struct collector *)offer)->to;
    char reason[MF_REASON_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    return to->reject(to, family, kernel, rule, "%s", reason);
}

/* Keeps the steps, because `open` gets only a name. */
static int enumerate(const struct mf_family *family, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct mf_python_family *f = (struct mf_python_family *)family;
    struct collector c = {.offer = {take_step, take_reject}, .family = f, .to = offer};
    f->n_steps = 0;
    f->shape = *shape;
    int r = mf_python_enumerator_run(&f->enumerator, f->name, device, shape, &c.offer);
    if (r < 0)
        f->n_steps = 0;
    return r;
}

static int ignore_step(struct mf_offer *offer, const struct mf_step *step)
{
    (void)offer;
    (void)step;
    return 0;
}

static const struct mf_step *find_step(const struct mf_python_family *f, const char *name)
{
    for (size_t i = 0; i < f->n_steps; i++) {
        if (strcmp(f->steps[i].name, name) == 0)
            return &f->steps[i];
    }
    return NULL;
}

/* Finds a step by name: that of a row, or one in the list of the last enumeration if it was of this shape. */
static int look_up(struct mf_python_family *f, const struct mf_device_info *device,
                   const struct mf_shape *shape, const char *name, const struct mf_step **ret)
{
    struct mf_offer ignore = {.step = ignore_step, .reject = mf_offer_ignore_rejection};
    const struct mf_python_row *row = mf_python_rows_find(&f->rows, name);
    int r = 0;
    if (row) {
        *ret = &row->step;
        return 0;
    }
    if (f->n_steps == 0 || !mf_shape_equal(&f->shape, shape))
        r = enumerate(&f->family, device, shape, &ignore);
    if (r < 0)
        return r;
    *ret = find_step(f, name);
    return *ret ? 0 : -EINVAL;
}

/* ---- kernels ---- */

/* Prints a step for the callback `open`: the step's description and, for a step of a table's row, the row. */
static char *print_step(const struct mf_python_family *f, const struct mf_step *step)
{
    const struct mf_python_row *row = mf_python_rows_find(&f->rows, step->name);
    _cleanup_(mf_freep) char *text = mf_step_print(step);
    if (!text || !row)
        return MF_TAKE(text);
    _cleanup_(cJSON_Deletep) cJSON *object = cJSON_Parse(text);
    return object && cJSON_AddRawToObject(object, "row", row->json) ? mf_json_print(object) : NULL;
}

static int open_step(const struct mf_family *family, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret)
{
    struct mf_python_family *f = (struct mf_python_family *)family;
    const struct mf_step *step = NULL;
    int r = look_up(f, &device->info, shape, name, &step);
    if (r < 0)
        return r;
    _cleanup_(mf_freep) struct mf_kernel *k = calloc(1, sizeof(*k));
    _cleanup_(cJSON_Deletep) cJSON *described = mf_python_shape(shape);
    _cleanup_(mf_freep) char *shape_text = described ? mf_json_print(described) : NULL,
                             *step_text = print_step(f, step);
    if (!k || !shape_text || !step_text)
        return -ENOMEM;
    *k = (struct mf_kernel){.family = f, .device = device, .step = *step, .shape = *shape};
    r = f->callbacks->open(f->id, shape_text, step_text, &k->id, device->open_error,
                           sizeof(device->open_error));
    if (r < 0)
        return r;
    *ret = MF_TAKE(k);
    return 0;
}

static void collect_addresses(const struct mf_kernel *k, const struct mf_launch *launch,
                              const void *to[ADDRESSES_MAX])
{
    size_t n = 0;
    for (int32_t i = 0; i < k->step.n_needs; i++) {
        for (int p = 0; p < MF_PARTS_MAX; p++)
            to[n++] = launch->needs[i].part[p];
    }
    for (int32_t i = 0; i < k->step.n_gives; i++) {
        for (int p = 0; p < MF_PARTS_MAX; p++)
            to[n++] = launch->gives[i].part[p];
    }
    to[n] = launch->workspace;
}

static void release(struct mf_kernel *k, struct arguments *a)
{
    char ignored[MF_REASON_MAX];
    if (a->id)
        (void)k->family->callbacks->release(k->id, a->id, ignored, sizeof(ignored));
    *a = (struct arguments){0};
}

static int prepare_arguments(struct mf_kernel *k, const struct mf_launch *launch, struct arguments *a)
{
    _cleanup_(cJSON_Deletep) cJSON *tensors = cJSON_CreateArray();
    int r = tensors ? mf_python_tensors_add(tensors, &k->step, &k->shape, launch) : -ENOMEM;
    if (r < 0)
        return r;
    _cleanup_(mf_freep) char *text = mf_json_print(tensors);
    if (!text)
        return -ENOMEM;
    int64_t id = ++k->last_arguments;
    r = k->family->callbacks->prepare(k->id, id, text, (uintptr_t)k->device->stream, &a->graph,
                                      k->device->open_error, sizeof(k->device->open_error));
    if (r < 0)
        return r;
    a->id = id;
    if (!a->graph && k->device->ops->launch_graph) {
        (void)mf_copy(k->eager, sizeof(k->eager), k->device->open_error);
        if (!k->eager[0])
            (void)mf_copy(k->eager, sizeof(k->eager), "the family does not capture its launches");
        k->device->open_error[0] = '\0';
    }
    return 0;
}

/* Finds the arguments with the launch's addresses. If the kernel is not prepared for these addresses,
 * replaces the least recently used arguments. */
static int find_arguments(struct mf_kernel *k, const struct mf_launch *launch, struct arguments **ret)
{
    const void *address[ADDRESSES_MAX] = {0};
    struct arguments *oldest = &k->arguments[0];
    collect_addresses(k, launch, address);
    for (int i = 0; i < ARGUMENTS_MAX; i++) {
        struct arguments *a = &k->arguments[i];
        if (a->id && memcmp(a->address, address, sizeof(address)) == 0) {
            a->last_use = ++k->use_counter;
            *ret = a;
            return 0;
        }
        if (a->last_use < oldest->last_use)
            oldest = a;
    }
    release(k, oldest);
    int r = prepare_arguments(k, launch, oldest);
    if (r < 0)
        return r;
    memcpy(oldest->address, address, sizeof(address));
    oldest->last_use = ++k->use_counter;
    *ret = oldest;
    return 0;
}

static int prepare(struct mf_kernel *k, const struct mf_launch *launch)
{
    struct arguments *a;
    return find_arguments(k, launch, &a);
}

static int launch_step(struct mf_kernel *k, const struct mf_launch *launch)
{
    struct arguments *a;
    int r = find_arguments(k, launch, &a);
    if (r < 0)
        return r;
    if (a->graph)
        return k->device->ops->launch_graph(k->device, (void *)a->graph);
    return k->family->callbacks->launch(k->id, a->id, (uintptr_t)k->device->stream, k->device->open_error,
                                        sizeof(k->device->open_error));
}

static int finish(struct mf_kernel *k, const struct mf_launch *launch)
{
    struct arguments *a;
    int r = find_arguments(k, launch, &a);
    if (r < 0)
        return r;
    return k->family->callbacks->finish(k->id, a->id, (uintptr_t)k->device->stream, k->device->open_error,
                                        sizeof(k->device->open_error));
}

static const char *eager(const struct mf_kernel *k)
{
    return k->eager[0] ? k->eager : NULL;
}

static struct mf_kernel *close_step(struct mf_kernel *k)
{
    char ignored[MF_REASON_MAX];
    if (!k)
        return NULL;
    for (int i = 0; i < ARGUMENTS_MAX; i++)
        release(k, &k->arguments[i]);
    (void)k->family->callbacks->close(k->id, ignored, sizeof(ignored));
    free(k);
    return NULL;
}

/* ---- compiling ahead ---- */

/* Prints the steps with these names as a JSON array. */
static char *print_steps(struct mf_python_family *f, const struct mf_device_info *device,
                         const struct mf_shape *shape, const char *const *names, size_t n)
{
    _cleanup_(cJSON_Deletep) cJSON *array = cJSON_CreateArray();
    for (size_t i = 0; array && i < n; i++) {
        const struct mf_step *step;
        _cleanup_(mf_freep) char *text =
            look_up(f, device, shape, names[i], &step) == 0 ? mf_step_print(step) : NULL;
        cJSON *raw = text ? cJSON_CreateRaw(text) : NULL;
        if (raw && !cJSON_AddItemToArray(array, raw))
            cJSON_Delete(raw);
    }
    return array ? mf_json_print(array) : NULL;
}

static int precompile(const struct mf_family *family, struct mf_device *device, const struct mf_shape *shape,
                      const char *const *names, size_t n, void (*progress)(void *context), void *context)
{
    struct mf_python_family *f = (struct mf_python_family *)family;
    char why[MF_REASON_MAX] = "";
    _cleanup_(mf_freep) char *steps = print_steps(f, &device->info, shape, names, n);
    _cleanup_(cJSON_Deletep) cJSON *described = mf_python_shape(shape);
    _cleanup_(mf_freep) char *text = described ? mf_json_print(described) : NULL;
    if (!steps || !text)
        return -ENOMEM;
    f->progress = progress;
    f->progress_context = context;
    int r = f->callbacks->precompile(f->id, text, steps, why, sizeof(why));
    f->progress = NULL;
    if (r < 0)
        (void)fprintf(stderr, "family %s: precompile: %s\n", f->name, why);
    return r;
}

void mf_python_family_progress(struct mf_python_family *f)
{
    if (f->progress)
        f->progress(f->progress_context);
}

/* ---- the production operator ---- */

/* AITER's operator, with the row that the coordinator exports for these steps. A call replaces the row of the
 * call before, because the coordinator may ask for any number of rows. */
static int production(const struct mf_family *family, const struct mf_device_info *device,
                      const struct mf_shape *shape, const struct mf_step *steps, size_t n,
                      struct mf_step *ret)
{
    struct mf_python_family *f = (struct mf_python_family *)family;
    struct mf_aiter_step of[MF_PATH_STEPS_MAX];
    struct mf_aiter_row row;
    int32_t block_m = 0;
    if (n > MF_ARRAY_LEN(of))
        return -ENOENT;
    for (size_t i = 0; i < n; i++) {
        if (!steps[i].aiter || strcmp(steps[i].family, f->name) != 0)
            return -ENOENT;
        of[i] = (struct mf_aiter_step){steps[i].name, steps[i].covers, steps[i].ksplit, steps[i].aiter};
        block_m = MF_MAX(block_m, steps[i].block_m);
    }
    int r = mf_aiter_row(of, n, block_m, &row);
    if (r < 0)
        return r;
    _cleanup_(cJSON_Deletep) cJSON *json = mf_aiter_row_json(&device->class, shape, &row);
    _cleanup_(mf_freep) char *text = json ? mf_json_print(json) : NULL;
    mf_python_rows_release(&f->rows);
    return text ? mf_python_rows_add(&f->rows, f->name, shape, text, ret) : -ENOMEM;
}

/* ---- life ---- */

static int copy_command(struct mf_python_family *f, const char *const *argv)
{
    for (int i = 0; argv[i]; i++) {
        if (i == COMMAND_MAX)
            return -E2BIG;
        f->command[i] = strdup(argv[i]);
        if (!f->command[i])
            return -ENOMEM;
    }
    return 0;
}

int mf_python_family_new(const struct mf_python_family_options *o, char *why, size_t why_cap,
                         struct mf_python_family **ret)
{
    if (!mf_is_name(o->name, MF_FAMILY_NAME_MAX - 1)) {
        mf_format(why, why_cap,
                  "the name '%s' of the family must be 1 to %d letters, digits, '_', '.' or '-'", o->name,
                  MF_FAMILY_NAME_MAX - 1);
        return -EINVAL;
    }
    struct mf_python_family *f = calloc(1, sizeof(*f));
    int r = f ? copy_command(f, o->enumerate) : -ENOMEM;
    if (f)
        f->device = strdup(o->device);
    if (r == 0 && !f->device)
        r = -ENOMEM;
    if (r < 0) {
        mf_format(why, why_cap, "%s", strerror(-r));
        mf_python_family_free(f);
        return r;
    }
    (void)mf_copy(f->name, sizeof(f->name), o->name);
    mf_format(f->kind, sizeof(f->kind), "%.*s", (int)strcspn(o->device, ":"), o->device);
    f->hash =
        mf_hash64(o->revision, strlen(o->revision), mf_hash64(f->name, strlen(f->name) + 1, MF_HASH_SEED));
    (void)mf_triton_version_find(o->revision, f->triton);
    f->id = o->id;
    f->callbacks = o->callbacks;
    f->enumerator =
        (struct mf_python_enumerator){.argv = (const char *const *)f->command, .device = f->device};
    f->family = (struct mf_family){
        .api = MF_FAMILY_API,
        .name = f->name,
        .device_kind = f->kind,
        .supports_ep = o->supports_ep,
        .enumerate = enumerate,
        .open = open_step,
        .launch = launch_step,
        .prepare = prepare,
        .captures = strcmp(f->kind, "hip") == 0,
        .finish = finish,
        .eager = eager,
        .close = close_step,
        .precompile = precompile,
        .production = o->opens_rows ? production : NULL,
    };
    *ret = f;
    return 0;
}

struct mf_python_family *mf_python_family_free(struct mf_python_family *f)
{
    if (!f)
        return NULL;
    mf_python_enumerator_release(&f->enumerator);
    for (int i = 0; i < COMMAND_MAX; i++)
        free(f->command[i]);
    mf_python_rows_release(&f->rows);
    free(f->device);
    free(f->steps);
    free(f);
    return NULL;
}

const struct mf_family *mf_python_family(const struct mf_python_family *f)
{
    return &f->family;
}

int mf_python_family_add_row(struct mf_python_family *f, const struct mf_shape *shape, const char *json,
                             struct mf_step *ret)
{
    return mf_python_rows_add(&f->rows, f->name, shape, json, ret);
}

uint64_t mf_python_family_hash(const struct mf_python_family *f)
{
    return f->hash;
}

const char *mf_python_family_triton(const struct mf_python_family *f)
{
    return f->triton;
}

void mf_python_family_warm_up(struct mf_python_family *f)
{
    (void)mf_python_enumerator_start(&f->enumerator); /* if it fails, the enumeration reports the error */
}
