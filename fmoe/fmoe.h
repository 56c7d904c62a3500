/* libfmoe: runs a fused mixture-of-experts layer with the kernels of a table that moefarm tuned.
 *
 *   fmoe_open        opens one device with one or more tables
 *   fmoe_layer_open  chooses, compiles and loads a layer's kernels for every bucket of token counts
 *   fmoe_run         runs the layer once: synchronous on the CPU, asynchronous in a stream on a GPU
 *   fmoe_reload      replaces the tables while calls continue
 *
 * Look-up: the bucket of a call is its token count rounded up to a power of two. From 32769 to 131071 tokens
 * the bucket is 32768. From 131072 tokens on, the bucket is 131072, or 32768 if the table has no row for
 * 131072. The key also includes the activation function, the data type of the activations and, under expert
 * parallelism, the number of local experts. A call whose bucket has no row is a miss. libfmoe serves a miss
 * with the fallback that fmoe_served names, counts the miss, and can report it to a moefarm coordinator. The
 * fallback has the least modelled time among the pipelines of the nearest rows, each scaled from the row's
 * measured time, and the pipeline with the lowest estimate from FLOPs and bytes. Rows of other layers with
 * the same formats count too, if their kernels support this layer.
 * Malformed and ambiguous rows are rejected when the table is read, and never during a call. The error
 * message names the file and the line.
 *
 * A call allocates no memory, takes no lock, opens no file and does not wait for the device. On a GPU it can
 * be captured in a graph and replayed with other routing in the same buffers. Two exceptions apply on the
 * CPU: a call wakes sleeping threads, and oneDNN (family onednn) allocates memory.
 *
 * Layers and streams: the layers of one model share their kernels, which are compiled and loaded once for
 * each handle. On a GPU, the token count, the arguments and the stream belong to a call: one thread may call
 * layers in several streams, and several threads may call layers at once, also the same layer and during
 * capture. Calls in one stream run one after the other and can share a workspace. Calls in different streams
 * can overlap and need different workspaces and outputs. A workspace of fmoe_max_workspace_bytes for each
 * stream serves all layers, and need not move. Give these streams the same priority: the blocks of some
 * kernels wait for each other, so all blocks must become resident before a later kernel takes their place.
 *
 * Threads: fmoe_reload, fmoe_drop_old, fmoe_layer_open, fmoe_rows, fmoe_served, fmoe_misses and fmoe_report_*
 * may run in other threads during calls, and so may fmoe_layer_close during calls of other layers. These
 * functions block each other, so a reload blocks the other functions while it compiles. fmoe_close must not
 * run during a call. On the CPU all handles of a process share one thread pool, so the process can run one
 * call at a time; a concurrent call fails with -EBUSY. On a GPU, functions make the handle's device the
 * current device of the calling thread. fmoe_layer_open loads code, which the runtime may forbid while a
 * stream is captured.
 *
 * Functions that return int return 0 or a negative errno. Functions with a parameter of type struct
 * fmoe_error also write a message to it; the parameter may be NULL. */
#ifndef FMOE_H
#define FMOE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define FMOE_VERSION_MAJOR 0
#define FMOE_VERSION_MINOR 1

/* Version of the library, "0.1.0". Before 1.0, each minor version has its own ABI and soname. */
const char *fmoe_version(void);

struct fmoe;
struct fmoe_layer;

struct fmoe_error {
    char text[512];
};

/* ---- a handle ---- */

/* device: "cpu:0", "hip:amd:0" or "hip:nvidia:0", as listed by `moefarm-worker --list-devices`. A GPU is used
 * through its primary context. tables: paths of n files exported for consumer moefarm; with n = 0 every call
 * is a miss.
 *
 * -EBADMSG: a row is malformed, or uses a kernel family that this build lacks; a row has this device's class
 * but belongs to another kind of device; two rows have the same key; or the tables have no row for this
 * device's class. -ENOENT and other errors: a file cannot be read. On NVIDIA sm_90 the function launches a
 * short kernel on the default stream and waits for the kernel, so do not call the function during stream
 * capture. */
int fmoe_open(const char *device, const char *const *tables, size_t n, struct fmoe_error *error,
              struct fmoe **ret);
/* Waits for the device, stops the reporter and closes the remaining layers. f may be NULL. */
void fmoe_close(struct fmoe *f);

/* Replaces all tables, or none on error. Chooses, compiles and loads the kernels of every open layer first,
 * then switches each layer. Calls that begin after fmoe_reload returns use the new tables. Returns the errors
 * of fmoe_open and fmoe_layer_open, and -EXDEV if a row needs another weight layout than the layer has, or
 * more workspace than the layer was opened with. Old plans stay loaded so that captured graphs can still be
 * replayed: see fmoe_drop_old. */
int fmoe_reload(struct fmoe *f, const char *const *tables, size_t n, struct fmoe_error *error);
/* Frees the plans that reloads replaced. Call it when no graph captured before the last reload will be
 * replayed. Waits for the device. -EBUSY: a stream capture is active on the device; nothing is freed, and the
 * capture is invalidated (CUDA and HIP forbid device synchronisation during any capture). */
int fmoe_drop_old(struct fmoe *f);

/* Rows of the current tables for this device's class. A class can contain device models of different speed
 * (H100 and H200). Rows tuned on another model of the class are used, but their times were measured on that
 * other model, and other kernels may be faster on this device. */
struct fmoe_rows {
    /* n: number of rows; n_other_model: number of rows tuned on another device model */
    size_t n, n_other_model;
    char model[96];       /* device model of this handle */
    char other_model[96]; /* model of the first row tuned on another device model; "" without such a row */
};
void fmoe_rows(struct fmoe *f, struct fmoe_rows *ret);

/* ---- a layer ---- */

/* Text members are spelled as in the table: "ActivationType.Silu", "torch.float8_e4m3fn",
 * "QuantType.per_1x128". */
struct fmoe_layer_model {
    /* experts: number of local experts, including fused shared experts */
    int32_t model_dim, inter_dim, experts, topk;
    const char *act_type;
    const char *dtype; /* data type of x and y: "torch.bfloat16" */
    const char *q_dtype_a, *q_dtype_w, *q_type;
    int32_t use_g1u1;        /* 1: w1 is [E, 2I, H], gate and up; 0: w1 is [E, I, H] */
    int32_t doweight_stage1; /* 1: apply the routing weight before the activation */
    const char *form;        /* further properties: "b1+b2", "ep:0/384"; NULL or "" for none */

    int64_t max_tokens; /* maximum token count of a call, 1 to 1048576 */
    /* Workspace that calls may use after later reloads, in bytes; 0: the requirement of the current tables.
     */
    size_t workspace_bytes;
    /* Layouts in which the caller already stores w1 and w2, for example "row". NULL selects the layout of the
     * table's rows, or "row" if the table has no row for this layer. */
    const char *w1_layout, *w2_layout;
};

/* Compiles and loads the kernels of the layer, unless an open layer has the same model, max_tokens, w1_layout
 * and w2_layout. -EINVAL: a member is invalid, or this build has no kernels for the layer. -EXDEV: the tables
 * need two layouts for one weight, or a layout other than the given w1_layout or w2_layout. -ENOTSUP: a
 * kernel fails to compile or to load. */
int fmoe_layer_open(struct fmoe *f, const struct fmoe_layer_model *model, struct fmoe_error *error,
                    struct fmoe_layer **ret);
/* Waits for the device; do not call it during stream capture on the device. l may be NULL. */
void fmoe_layer_close(struct fmoe_layer *l);

/* Returns the workspace size for calls of up to max_tokens, in bytes. The size is constant while the layer is
 * open. */
size_t fmoe_workspace_bytes(const struct fmoe_layer *l);
/* Returns the largest workspace size of the open layers, in bytes; 0 without open layers. A reload does not
 * change it. */
size_t fmoe_max_workspace_bytes(const struct fmoe *f);

/* Storage of weight 1 or 2 as fmoe_run expects it: elements of all experts, then, if the format has them,
 * block scales and a global factor. */
struct fmoe_weight {
    const char *layout; /* "row", "panel16", …: see docs/api.md */
    size_t bytes[3];    /* size of the elements, the scales and the factor; 0: absent */
};
int fmoe_layer_weight(const struct fmoe_layer *l, int which, struct fmoe_weight *ret);
/* Converts weight `which` (1 or 2) from layout "row" to the layer's layout, in host memory. The experts keep
 * their order. The buffers of `from` and `to` must not overlap. */
int fmoe_layer_pack(const struct fmoe_layer *l, int which, const void *const from[3], void *const to[3]);
/* Does the same in device memory. On a GPU the conversion is queued in `stream` (see fmoe_call) and the call
 * does not wait for it. On the CPU this is fmoe_layer_pack. */
int fmoe_layer_pack_device(const struct fmoe_layer *l, int which, const void *const from[3],
                           void *const to[3], void *stream);

/* Kernels that currently serve a given token count. */
struct fmoe_served {
    int tuned;           /* 1: a row of a table; 0: a fallback (miss) */
    int64_t bucket;      /* bucket of the token count */
    double us;           /* time of the row in microseconds; 0 without a row */
    char table[256];     /* file of the row, or of the row used as a fallback; "" if no row is used */
    int64_t line;        /* line of that row in the file */
    char pipeline[1024]; /* "family:step|family:step", truncated if longer */
    /* Fallbacks: modelled time in microseconds (0: the table has no row to compare with), and a sentence that
     * says why the fallback was chosen; 0 and "" for a row. */
    double modelled_us;
    char reason[320];
};
/* Returns -EINVAL if `tokens` is less than 1 or more than max_tokens. */
int fmoe_served(struct fmoe_layer *l, int64_t tokens, struct fmoe_served *ret);

/* ---- a call ---- */

enum fmoe_type {
    FMOE_INT32 = 0,
    FMOE_INT64,
    FMOE_FLOAT32,
    FMOE_BFLOAT16,
};

struct fmoe_call {
    int64_t tokens;
    const void *x; /* bf16 [tokens, model_dim] */
    /* [tokens, topk], global expert ids. An id that is negative, too large or of an expert that is not local
     * contributes nothing; its weight is not used. */
    const void *ids;
    int32_t ids_type;          /* FMOE_INT32 (0) or FMOE_INT64 */
    const void *weights;       /* [tokens, topk] */
    int32_t weights_type;      /* FMOE_FLOAT32 or FMOE_BFLOAT16; must be set */
    const void *w1[3], *w2[3]; /* elements, scales, factor: see fmoe_layer_weight */
    /* biases if the layer has them: b1 is float [E, 2I] (gate first) or [E, I]; b2 is float [E, H] */
    const float *b1, *b2;
    const float *calib; /* NVFP4 only: the two global factors of the activations */
    void *y;            /* bf16 [tokens, model_dim], fully overwritten */
    void *workspace;    /* 64-byte aligned */
    size_t workspace_bytes;
    void *stream; /* GPU: hipStream_t or CUstream (cudaStream_t); NULL: the default stream */
};
/* Maps expert ids for ranks whose local experts are not a contiguous range (round robin, load balancing, a
 * mask). The layer must have the form "ep:0/ALL". expert_map has ALL entries, as in vLLM: the position of
 * each expert in w1 and w2 (any order, from 0), or -1 if the expert is not local. Rewrites ids [tokens, topk]
 * to the ids that fmoe_run expects; `to` may equal ids. All arrays are in host memory. -EINVAL: the layer has
 * no such form, a position is out of range, or two experts have the same position; nothing is written. */
int fmoe_remap_ids(const struct fmoe_layer *l, const int32_t *expert_map, int64_t tokens, const int32_t *ids,
                   int32_t *to, struct fmoe_error *error);
/* Does the same in device memory. On a GPU one kernel is queued in `stream`, which can be captured. ids and
 * `to` have the type ids_type (FMOE_INT32 or FMOE_INT64). The map is not checked: an expert with a position
 * that is out of range is not local. -EINVAL: the layer has no form "ep:", or tokens or ids_type is
 * invalid. */
int fmoe_remap_ids_device(const struct fmoe_layer *l, const int32_t *expert_map, int64_t tokens,
                          const void *ids, int32_t ids_type, void *to, void *stream);

/* Runs the layer. All pointers are device pointers. Tables are tuned for int32 ids and float32 weights; the
 * other types use the same kernels. -EINVAL: `tokens` is less than 1 or more than max_tokens, ids_type or
 * weights_type is invalid, or the workspace is too small or misaligned. -ENOTSUP: a prebuilt kernel of family
 * asm in the table's row reads only int32 ids and float32 weights. -EBUSY: see Threads above. -ECANCELED: the
 * stream capture was invalidated. -EIO: the device has failed permanently. */
int fmoe_run(struct fmoe_layer *l, const struct fmoe_call *call);

/* ---- calibration ---- */

/* NVFP4 activations have two global factors: x is multiplied by the first before it is quantised, the
 * intermediate activations h by the second (fmoe_call.calib). Both follow from the largest magnitudes in
 * warm-up batches. Zero-initialise the struct, add batches, then compute the factors. */
struct fmoe_calibration {
    float x_amax, h_amax; /* largest magnitudes in all batches so far */
    int64_t batches, tokens;
};
/* Adds a batch: runs the layer up to h on the device, with the members of `call` except calib, y and the
 * workspace, which are not used. Compiles kernels, allocates memory and waits for the device, so do not call
 * the function during stream capture. -EINVAL: the layer has no such factors, a member of `call` is invalid,
 * or x or h has a value that is not finite; the batch is not added. -ENOTSUP: no kernels store h. */
int fmoe_calibrate(struct fmoe_layer *l, const struct fmoe_call *call, struct fmoe_calibration *c,
                   struct fmoe_error *error);
/* Computes the factors for magnitudes that are `margin` times the observed ones, in host memory. With a
 * margin of 1, larger values saturate. -ENODATA: no batch was added. -EINVAL: margin is not above 0. */
int fmoe_calibration_factors(const struct fmoe_layer *l, const struct fmoe_calibration *c, float margin,
                             float ret[2], struct fmoe_error *error);

/* ---- misses ---- */

/* Returns the number of calls without a row, over all layers. A captured call is counted once, and replays of
 * its graph are not counted. */
uint64_t fmoe_n_misses(const struct fmoe *f);
/* Returns the misses that no previous call has returned, as the JSON body of POST /api/v1/misses. The caller
 * frees *ret; it is NULL if there are no misses. source: name of the reporting process; NULL: "host/pid". */
int fmoe_misses(struct fmoe *f, const char *source, char **ret);

/* Starts a thread that reports misses to a coordinator every `seconds` seconds (1 to 86400). A failed report
 * is retried with the same idempotency key, so the coordinator counts its misses once. A refused report is
 * dropped. Calls never wait for the thread. url: "http://farm:8080". token_file: file with the access token;
 * NULL for a coordinator on loopback. -EALREADY: the thread is running. -ELIBACC: libcurl.so.4 is
 * missing. */
int fmoe_report_start(struct fmoe *f, const char *url, const char *token_file, int64_t seconds,
                      struct fmoe_error *error);
/* Sends a last report and stops the thread, within 20 seconds. Skips the last report if the previous report
 * failed. */
void fmoe_report_stop(struct fmoe *f);
struct fmoe_reported {
    uint64_t sent, failed, refused; /* number of reports */
};
void fmoe_report_state(struct fmoe *f, struct fmoe_reported *ret);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
