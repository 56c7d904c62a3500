/* Options of a batch, and the table that describes each option: name, type, range, default, help. The REST
 * API and its OpenAPI document, the database, work units and the command line are derived from this table. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/names.h"
#include "common/moe/consumer.h"
#include "common/moe/device_class.h"
#include "common/moe/layer.h"
#include "common/moe/pipeline_search.h"
#include "common/moe/production_key.h"
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
/* clang-format on */
MF_NAMES_DECLARE(mf_search, MF_SEARCH_, MF_SEARCH_MAP);
MF_NAMES_DECLARE(mf_promote, MF_PROMOTE_, MF_PROMOTE_MAP);

#define MF_BATCH_CLASSES_MAX 16
#define MF_BATCH_NO_FUSE_MAX 8
#define MF_BATCH_REGRET_MAX  4

struct mf_batch_options {
    int64_t priority;    /* higher runs sooner */
    int64_t topk;        /* finalists: the K cheapest pipelines */
    double err_ratio;    /* AITER's maximum mismatch ratio */
    int64_t time_cap_ms; /* time limit per step */
    /* seconds that workers may spend on a task's probes; 0: measure all candidates */
    int64_t time_budget;
    struct mf_routing routing;
    enum mf_search search;
    /* Consumers of the tables. MF_CONSUMER_AITER: also tune the key that AITER's production lookup computes
     * from a row */
    int n_consumers;
    enum mf_consumer consumers[MF_CONSUMER_N_];
    struct mf_production_env
        aiter_env;    /* consumer=aiter: environment of the production that reads the table */
    bool layout_free; /* layout=free: each task may use its own weight layout */
    /* required weight layout, such as "w1=row w2=row"; "": the farm chooses the layout */
    char layout[MF_PATH_LAYOUT_MAX];
    enum mf_promote promote;
    double min_effect; /* promote=improved: minimum gain over the known row */
    /* true: the known rows are part of the batch; false: the known rows are the farm's configs */
    bool has_baseline;
    int64_t seed;      /* of the generated data */
    double fuse_saves; /* minimum memory traffic in bytes that a fused step must save; 0: no minimum */
    int n_no_fuse;     /* sets of ops that no step may fuse */
    mf_ops no_fuse[MF_BATCH_NO_FUSE_MAX];
    /* untimed runs before the samples of a candidate; 0: the first run is already a sample */
    int64_t warmup;
    int64_t iters; /* samples of the winner's rerun; 0: the farm decides */
    bool split_k;  /* false: exclude split-K steps */
    /* true: one worker measures all units of a task as long as that worker stays connected */
    bool shape_grouped;
    int n_regret; /* routing profiles of the regret races */
    struct mf_routing regret[MF_BATCH_REGRET_MAX];
    /* number of requested classes. 0: the farm uses every class with a live worker at submission; if no
     * worker is live, it uses the class of the next worker */
    int n_classes;
    struct mf_device_class classes[MF_BATCH_CLASSES_MAX];
};

/* Type of an option. The type determines the C type of the field, the text form and the JSON form. */
enum mf_option_type {
    MF_OPTION_INT,     /* int64_t */
    MF_OPTION_NUMBER,  /* double */
    MF_OPTION_FLAG,    /* bool, in JSON 0 or 1 */
    MF_OPTION_NAME,    /* enum, one of `names` */
    MF_OPTION_TEXT,    /* text with its own syntax */
    MF_OPTION_ROUTING, /* text, like MF_OPTION_TEXT; the API also accepts an array of token counts */
    MF_OPTION_LIST,    /* comma-separated text, in JSON an array */
    MF_OPTION_PRIVATE, /* bool, in JSON true or false; set by the coordinator, not by the user */
    MF_OPTION_N_TYPES_
};

/* Buffer size for the text of any option and of any item of a list. */
#define MF_OPTION_VALUE_MAX MF_ROUTING_TEXT_MAX

/* Syntax of a text option, or of one item of a list option. */
struct mf_option_syntax {
    /* Sets the option from its text; for a list option, appends one item. Returns -EINVAL if the text is not
     * valid. */
    int (*parse)(const char *text, struct mf_batch_options *ret);
    void (*print)(const struct mf_batch_options *o, int item, char buf[MF_OPTION_VALUE_MAX]);
    const char *items; /* what a list contains, for messages */
    const char *empty; /* text of an empty list; NULL: none */
};

struct mf_batch_option {
    /* name of the JSON member and of the query parameter; the command-line flag has '-' instead of '_' */
    const char *name;
    enum mf_option_type type;
    /* offset of the field in the options; for a list, offset of the number of items (an int) */
    size_t offset;
    double min, max;          /* range of an integer or number; for a list, range of the number of items */
    bool below_max;           /* the number must be less than max */
    const char *const *names; /* names of an enum's values in their order, then NULL */
    const struct mf_option_syntax *syntax;
    const char *initial;      /* text of the default; NULL: the field is 0 */
    const char *initial_help; /* text that help shows for the default; NULL: help shows `initial` */
    const char *argument;     /* placeholder of the value on the command line */
    const char *summary;      /* help without range and default */
    /* text after "expected " in error messages; NULL: derived from type and range */
    const char *expected;
    /* AITER's environment variable that sets this value in production, and in moefarm's commands; NULL: none
     */
    const char *environment;
    bool for_units; /* part of a work unit's options */
    /* true: stored only if the value differs from the default; false: always stored */
    bool if_changed;
};

/* At least the number of options. */
#define MF_BATCH_N_OPTIONS_MAX 32
/* All options, in the order in which the database stores them. */
const struct mf_batch_option *mf_batch_option_table(size_t *ret_n);
mf_consumers mf_batch_consumers(const struct mf_batch_options *o);
/* Returns the text of the layout option: "common", "free" or "w1=… w2=…". */
const char *mf_batch_layout(const struct mf_batch_options *o);
