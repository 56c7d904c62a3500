/* libfmoe: a fused mixture-of-experts layer, served from the table that moefarm tuned.
 *
 *   fmoe_open          a table, or a set of them, for one device
 *   fmoe_layer_open    one layer model: what serves each count of tokens is decided, compiled and loaded here
 *   fmoe_run           one call: on the CPU it is done when it returns, on a GPU it is in a stream then
 *   fmoe_reload        the tables anew, while calls go on
 *
 * A call looks up by its bucket of tokens (the next power of two, 32768 beyond it, 131072 from there on and the tier below it
 * where that has no row), with the activation function, the type of the activations and a rank's share of the experts in the
 * key. A bucket without a row is a miss: it is served by the choice that fmoe_served names, counted, and may be reported to a
 * farm. A table that has a malformed or an ambiguous row is refused when it is read, with its line: never at a call.
 *
 * A call allocates nothing, takes no lock, opens no file and waits for no device; on a GPU it may be captured in a graph and
 * replayed with other routing in the same buffers. (On the CPU, threads that sleep are woken, and oneDNN, whose kernels are family
 * lib, allocates.)
 *
 * Threads: a handle and its layers serve one call at a time; who serves several streams at once opens a handle for each.
 * fmoe_reload, fmoe_drop_old, fmoe_rows, fmoe_served, fmoe_misses and fmoe_report_* may be called from other threads meanwhile, and wait for each
 * other: for a reload, as long as it compiles. Opening and closing layers may not. On the CPU all handles of a process share its threads: one call of a process at a time, and -EBUSY for
 * a second. A GPU's calling thread gets the handle's device as its current one.
 *
 * Functions return 0 or a negative errno; those that take a struct fmoe_error put a sentence in it. */
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

/* Of the library: "0.1.0". Before 1.0 a minor version is another ABI, and another soname. */
const char *fmoe_version(void);

struct fmoe;
struct fmoe_layer;

struct fmoe_error {
    char text[512];
};

/* ---- a handle ---- */

/* device: "cpu:0", "hip:amd:0", "hip:nvidia:0", as `moefarm-worker --list-devices` names them; a GPU's primary context is used.
 * tables: n files written for consumer moefarm; n may be 0, and then everything is a miss. -EBADMSG: a row is malformed, of
 * another kind of device under this one's class, of a family that this build does not have, its key is there twice, or no row is
 * of this device's class; -ENOENT, …: a file cannot be read. On an NVIDIA GPU of sm_90 it launches a short kernel
 * on the default stream and waits for it: not while a stream is captured. */
int fmoe_open(const char *device, const char *const *tables, size_t n, struct fmoe_error *error,
              struct fmoe **ret);
/* Waits for the device, ends the reporter, closes what layers are left. NULL is fine. */
void fmoe_close(struct fmoe *f);

/* Reads tables in the place of those that serve now: all or nothing. What serves is decided, compiled and loaded for every layer
 * that is open; then each is switched, and a call that begins after this has returned is served by the new tables. As fmoe_open and
 * fmoe_layer_open; also -EXDEV: a row wants weights in another layout than the layer has, or more workspace than it was opened with. Old plans
 * stay, so that graphs which hold them can be replayed. */
int fmoe_reload(struct fmoe *f, const char *const *tables, size_t n, struct fmoe_error *error);
/* Frees what reloads have left: when no graph that was captured before the last of them will be replayed. Waits for the device.
 * -EBUSY: something on the device is being captured, by whomever, which this has spoilt; nothing is freed. So it is with every
 * runtime: nobody may wait for a device while a capture is under way, in any mode. */
int fmoe_drop_old(struct fmoe *f);

/* Rows of this device's class in the tables of now. Device models of one class are not equally fast (an H100 and an H200): rows of
 * another one serve all the same, but their times are that one's, and other steps may be faster here. */
struct fmoe_rows {
    size_t n, elsewhere; /* elsewhere: those of n that say they were tuned on another device model */
    char here[96];       /* this device's model */
    char there[96];      /* that of the first row from elsewhere; "" for none */
};
void fmoe_rows(struct fmoe *f, struct fmoe_rows *ret);

/* ---- a layer ---- */

/* Spelled as in the table: "ActivationType.Silu", "torch.float8_e4m3fn", "QuantType.per_1x128". */
struct fmoe_layer_model {
    int32_t model_dim, inter_dim, experts, topk; /* experts: whose weights are here, fused shared ones too */
    const char *act_type;
    const char *dtype; /* of x and y: "torch.bfloat16" */
    const char *q_dtype_a, *q_dtype_w, *q_type;
    int32_t use_g1u1;        /* w1 is [E, 2I, H], gate and up; 0: [E, I, H] */
    int32_t doweight_stage1; /* the routing weight is applied before the activation */
    const char *form;        /* what the above cannot say: "b1+b2", "ep:0/384"; NULL or "" for nothing */

    int64_t max_tokens; /* of a call, 1 to 1048576 */
    /* Bytes of workspace that reloads have to do with; 0: as many as the tables of now need. */
    size_t workspace_bytes;
    /* The layouts that w1 and w2 lie in already ("row"); NULL: as the tables say, and row where they say nothing. */
    const char *w1_layout, *w2_layout;
};

/* -EINVAL: a member is no such thing, or nothing of this build serves the layer; -EXDEV: the tables want its weights in two
 * layouts, or in another than given; -ENOTSUP: a kernel does not compile or load. */
int fmoe_layer_open(struct fmoe *f, const struct fmoe_layer_model *model, struct fmoe_error *error,
                    struct fmoe_layer **ret);
/* Waits for the device: not while anything on it is being captured. NULL is fine. */
void fmoe_layer_close(struct fmoe_layer *l);

/* Bytes that calls of up to max_tokens need, aligned to 64; the same for as long as the layer is open. */
size_t fmoe_workspace_bytes(const struct fmoe_layer *l);

/* A weight, 1 or 2, as calls take it: all experts, elements first; with its scales, and a factor for all of it, where the
 * format has them. */
struct fmoe_weight {
    const char *layout; /* "row", "panel16", …: docs/api.md */
    size_t bytes[3];    /* of elements, scales, factor; 0: none */
};
int fmoe_layer_weight(const struct fmoe_layer *l, int which, struct fmoe_weight *ret);
/* From layout row to the layer's, in host memory; from and to do not overlap. Experts in their order. */
int fmoe_layer_pack(const struct fmoe_layer *l, int which, const void *const from[3], void *const to[3]);

/* What serves a call of so many tokens now. */
struct fmoe_served {
    int tuned;           /* by a row; 0: a miss */
    int64_t bucket;      /* the call's */
    double us;           /* of the row; 0: none */
    char table[256];     /* the file whose row it is, or whose row was taken in its place; "" for neither */
    int64_t line;        /* of that row */
    char pipeline[1024]; /* "family:step|family:step", cut where it is longer */
};
/* -EINVAL: a count that the layer does not serve. */
int fmoe_served(struct fmoe_layer *l, int64_t tokens, struct fmoe_served *ret);

/* ---- a call ---- */

struct fmoe_call {
    int64_t tokens;
    const void *x; /* bf16 [tokens, model_dim] */
    /* [tokens, topk], of all ranks' experts; -1 and what is not here contribute nothing */
    const int32_t *ids;
    const float *weights;      /* [tokens, topk] */
    const void *w1[3], *w2[3]; /* elements, scales, factor: as fmoe_layer_weight says */
    const float *b1, *b2;      /* of layers that have such a bias: [E, 2I] or [E, I], gate first; [E, H] */
    const float *calib;        /* NVFP4: the activations' two factors */
    void *y;                   /* bf16 [tokens, model_dim], written wholly */
    void *workspace;           /* 64-byte aligned */
    size_t workspace_bytes;
    void *stream; /* of a GPU: hipStream_t or CUstream (cudaStream_t); NULL: the default stream */
};
/* For experts of a rank that are no range (round robin, balanced by load, a mask), whose layer has the form "ep:0/ALL": expert_map
 * has the place of each of ALL experts in w1 and w2, from 0 on and in any order, or -1 (vLLM's expert_map). Rewrites ids [tokens, topk]
 * into what a call takes; in place where to is ids. In host memory. -EINVAL: no layer of a rank's, a place beyond its experts, or
 * one that two experts have; nothing is written then. */
int fmoe_place(const struct fmoe_layer *l, const int32_t *expert_map, int64_t tokens, const int32_t *ids,
               int32_t *to, struct fmoe_error *error);

/* All pointers are the device's. -EINVAL: no tokens or more than the layer was opened for, too little workspace, or one that is not
 * aligned; -EBUSY: see above; -ECANCELED: the capture that the stream is in was spoilt; -EIO: the device has failed, for good. */
int fmoe_run(struct fmoe_layer *l, const struct fmoe_call *call);

/* ---- misses ---- */

/* Calls so far that no row answered; one that is captured counts once, however often its graph is replayed. */
uint64_t fmoe_n_misses(const struct fmoe *f);
/* The misses since the last time, as a farm takes them (POST /api/v1/misses), in memory that the caller frees; *ret is NULL when
 * there were none. source: who reports, "host/pid" for NULL. */
int fmoe_misses(struct fmoe *f, const char *source, char **ret);

/* Has a thread report misses to a farm each so many seconds. A report that does not get through is sent again, under the same
 * key, so that it counts once; what the farm refuses is dropped. Calls never wait for it. url: "http://farm:8080"; token_file:
 * NULL on loopback. -EALREADY: it does. */
int fmoe_report_start(struct fmoe *f, const char *url, const char *token_file, int64_t seconds,
                      struct fmoe_error *error);
/* Ends it, after one more report where the farm answers: within 20 seconds. */
void fmoe_report_stop(struct fmoe *f);
struct fmoe_reported {
    uint64_t sent, failed, refused; /* reports */
};
void fmoe_report_state(struct fmoe *f, struct fmoe_reported *ret);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
