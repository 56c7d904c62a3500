/* The store of frozen exports and of the channels they are pulled by. What the API reads of them is in
 * store_read_release.h. */
#pragma once

#include "common/base/names.h"
#include "common/base/sha256.h"
#include "server/store/store.h"

#define MF_RELEASE_NAME_MAX 64
#define MF_CHANNEL_NAME_MAX 64
#define MF_CHANNEL_TEXT_MAX 400 /* a reason */
#define MF_CHANNELS_MAX     200 /* that staging makes */

/* Where a row of the table comes from. */
struct mf_release_row {
    const char *key, *names;
    double us;
    int64_t config, task, pipeline;
};

struct mf_release {
    const char *name, *created_by, *filters, *csv, *manifest;
    size_t csv_len, manifest_len;
    char sha256[MF_SHA256_TEXT_MAX], manifest_sha256[MF_SHA256_TEXT_MAX];
    int64_t created_ms, n_left_out;
    const struct mf_release_row *rows;
    size_t n_rows;
};
/* 1: there is one of that name, filters and bytes already, and *ret is it. -EEXIST: there is one of that name, and it is
 * another. */
int mf_store_release_add(struct mf_store *s, const struct mf_release *release, int64_t *ret);

/* clang-format off */
#define MF_MOVE_MAP(X, P)       \
    X(P, STAGE, "stage")        \
    X(P, APPROVE, "approve")    \
    X(P, ROLLBACK, "rollback")  \
    X(P, UNSTAGE, "unstage")
/* clang-format on */
MF_NAMES_DECLARE(mf_move, MF_MOVE_, MF_MOVE_MAP);

/* What a move came to. All but the first leave the channel as it is. */
enum mf_moved {
    MF_MOVED,
    MF_MOVED_BEFORE,      /* it was the last of its kind, and stands: an answer was lost */
    MF_MOVED_NO_RELEASE,  /* there is none of that number */
    MF_MOVED_NO_CHANNEL,  /* only `stage` makes one */
    MF_MOVED_TOO_MANY,    /* stage: there are MF_CHANNELS_MAX channels already */
    MF_MOVED_CURRENT,     /* stage, approve: it is what is pulled already */
    MF_MOVED_NOT_STAGED,  /* approve, unstage: another one is, or none */
    MF_MOVED_NOT_CURRENT, /* rollback: another one is */
    MF_MOVED_NONE_BELOW,  /* rollback: nothing was approved before it */
};

/* Each move names the release that it moves: who has looked at one does not move another. */
struct mf_channel_move {
    const char *channel;
    enum mf_move move;
    int64_t release; /* stage, approve: the new one; rollback, unstage: the one that is taken back */
    const char *moved_by, *reason;
    int64_t at_ms;
};
/* A channel as it stands; 0: none. */
struct mf_channel {
    int64_t id, staged, current;
};
/* Gives an enum mf_moved, or a negative errno. */
int mf_store_channel_move(struct mf_store *s, const struct mf_channel_move *m, struct mf_channel *ret);
