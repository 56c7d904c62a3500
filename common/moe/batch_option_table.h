/* Options of a batch, and the table that describes each option: name, type, range, default, help. The REST
 * API and its OpenAPI document, the database, work units and the command line follow from the table. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/device_class.h"
#include "common/moe/layer.h"
#include "common/moe/pipeline_search.h"
#include "common/moe/routing.h"

/* clang-format off */
/* How much of the search space is measured */
#define MF_SEARCH_MAP(X, P)                                                    \
    X(P, RACE, "race")                                                         \
    X(P, EXHAUSTIVE, "exhaustive") /* every step gets all gates and samples */ \
    X(P, ENUMERATE, "enumerate")   /* lists steps and rejections, measures nothing */
/* Which row is exported */
#define MF_PROMOTE_MAP(X, P)                     \
    X(P, ALWAYS, "always")     /* the new row */ \
    X(P, IMPROVED, "improved") /* the known row, unless the new row wins the comparison */
/* Which production lookup reads the table */
#define MF_CONSUMER_MAP(X, P)   \
    X(P, MOEFARM, "moefarm")    \
    X(P, AITER, "aiter")
/* clang-format on */
MF_NAMES_DECLARE(mf_search, MF_SEARCH_, MF_SEARCH_MAP);
MF_NAMES_DECLARE(mf_promote, MF_PROMOTE_, MF_PROMOTE_MAP);
MF_NAMES_DECLARE(mf_consumer, MF_CONSUMER_, MF_CONSUMER_MAP);

#define MF_BATCH_CLASSES_MAX 16
#define MF_BATCH_NO_FUSE_MAX 8
#define MF_BATCH_REGRET_MAX  4

struct mf_batch_options {
    int64_t priority;    /* higher runs sooner */
    int64_t topk;        /* finalists: the K cheapest pipelines */
    double err_ratio;    /* AITER's maximum mismatch ratio */
    int64_t time_cap_ms; /* per step */
    struct mf_routing routing;
    enum mf_search search;
    enum mf_consumer consumer; /* aiter: tune the key that AITER's production lookup computes from a row */
    bool layout_free;          /* layout=free: each task may use its own weight layout */
    char layout[MF_PATH_LAYOUT_MAX]; /* given weight layout "w1=row w2=row"; "": the farm chooses */
    enum mf_promote promote;
    double min_effect; /* promote=improved: minimum gain over the known row */
    bool has_baseline; /* known rows come with the batch instead of from the farm's configs */
    int64_t seed;      /* of the generated data */
    double fuse_saves; /* minimum memory traffic in bytes that a fused step must save; 0: no minimum */
    int n_no_fuse;     /* sets of ops that no step may fuse */
    mf_ops no_fuse[MF_BATCH_NO_FUSE_MAX];
    int64_t warmup;     /* untimed runs of a candidate; 0: the first run is timed too */
    int64_t iters;      /* samples of the winner's rerun; 0: the farm decides */
    bool split_k;       /* false: exclude split-K steps */
    bool shape_grouped; /* one worker measures all units of a task while it is connected */
    int n_regret;       /* routing profiles of the regret races */
    struct mf_routing regret[MF_BATCH_REGRET_MAX];
    int n_classes; /* 0: classes with a live worker at submission, or if none, the next worker's class */
    struct mf_device_class classes[MF_BATCH_CLASSES_MAX];
};

/* Type of an option: of its field, its text and its JSON. */
enum mf_option_type {
    MF_OPTION_INT,     /* int64_t */
    MF_OPTION_NUMBER,  /* double */
    MF_OPTION_FLAG,    /* bool, in JSON 0 or 1 */
    MF_OPTION_NAME,    /* enum, one of `names` */
    MF_OPTION_TEXT,    /* text with its own syntax */
    MF_OPTION_ROUTING, /* the same; the API also accepts an array of token counts */
    MF_OPTION_LIST,    /* comma-separated text, in JSON an array */
    MF_OPTION_PRIVATE, /* bool, in JSON true or false; the coordinator sets it, not the user */
    MF_OPTION_N_TYPES_
};

/* Enough for the text of every option and for every item of a list. */
#define MF_OPTION_VALUE_MAX MF_ROUTING_TEXT_MAX

/* Syntax of a text, or of an item of a list. */
struct mf_option_syntax {
    int (*parse)(const char *text, struct mf_batch_options *ret); /* list: appends the item. -EINVAL */
    void (*print)(const struct mf_batch_options *o, int item, char buf[MF_OPTION_VALUE_MAX]);
    const char *items; /* what a list contains, for messages */
    const char *empty; /* text of an empty list; NULL: none */
};

struct mf_batch_option {
    const char *name; /* JSON member and query parameter; the flag of the command line has '-' for '_' */
    enum mf_option_type type;
    size_t offset;            /* of the field; of a list: the number of items, an int */
    double min, max;          /* of an integer or number; of a list: of the number of items */
    bool below_max;           /* the number must be less than max */
    const char *const *names; /* of an enum, by value, then NULL */
    const struct mf_option_syntax *syntax;
    const char *initial;      /* text of the default; NULL: the field is 0 */
    const char *initial_help; /* the default as help shows it; NULL: `initial` */
    const char *argument;     /* placeholder of the value on the command line */
    const char *summary;      /* help without range and default */
    const char *expected;     /* follows "expected " in errors; NULL: made from type and range */
    bool for_units;           /* part of a work unit's options */
    bool if_changed;          /* stored only if it differs from the default */
};

/* At least the number of options. */
#define MF_BATCH_N_OPTIONS_MAX 32
/* All options, in the order in which the database stores them. */
const struct mf_batch_option *mf_batch_option_table(size_t *ret_n);
/* Text of the layout option: "common", "free" or "w1=… w2=…". */
const char *mf_batch_layout(const struct mf_batch_options *o);
