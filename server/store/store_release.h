/* Releases (frozen exports) and the channels that deployments pull them from, in the database. Queries of the
 * REST API are in store_read_release.h. */
#pragma once

#include "common/base/names.h"
#include "common/base/sha256.h"
#include "server/store/store.h"

#define MF_RELEASE_NAME_MAX 64
#define MF_CHANNEL_NAME_MAX 64
#define MF_CHANNEL_TEXT_MAX 400 /* maximum length of a reason */
#define MF_CHANNELS_MAX     200 /* maximum number of channels; `stage` creates no further ones */

/* Origin of one row of the table. */
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
/* Returns 1 and *ret if a release of that name with the same filters and bytes exists, 0 if it was added.
 * -EEXIST: the name is used by a different release. */
int mf_store_release_add(struct mf_store *s, const struct mf_release *release, int64_t *ret);

/* clang-format off */
#define MF_MOVE_MAP(X, P)       \
    X(P, STAGE, "stage")        \
    X(P, APPROVE, "approve")    \
    X(P, ROLLBACK, "rollback")  \
    X(P, UNSTAGE, "unstage")
/* clang-format on */
MF_NAMES_DECLARE(mf_move, MF_MOVE_, MF_MOVE_MAP);

/* Outcome of a move. All but MF_MOVED leave the channel unchanged. */
enum mf_moved {
    MF_MOVED,
    MF_MOVED_ALREADY,     /* the request repeats the channel's last move */
    MF_MOVED_NO_RELEASE,  /* no release with that id */
    MF_MOVED_NO_CHANNEL,  /* only `stage` creates a channel */
    MF_MOVED_TOO_MANY,    /* stage: MF_CHANNELS_MAX channels exist */
    MF_MOVED_CURRENT,     /* stage, approve: the release is current already */
    MF_MOVED_NOT_STAGED,  /* approve, unstage: the release is not the staged one */
    MF_MOVED_NOT_CURRENT, /* rollback: the release is not the current one */
    MF_MOVED_NO_PREVIOUS, /* rollback: no earlier approval */
};

/* Every move names its release, so that a user cannot move a release that they have not looked at. */
struct mf_channel_move {
    const char *channel;
    enum mf_move move;
    int64_t release; /* stage, approve: the new release; rollback, unstage: the release that is withdrawn */
    const char *moved_by, *reason;
    int64_t at_ms;
};
/* State of a channel; a release id of 0 means none. */
struct mf_channel {
    int64_t id, staged, current;
};
/* Returns an enum mf_moved or a negative errno. */
int mf_store_channel_move(struct mf_store *s, const struct mf_channel_move *m, struct mf_channel *ret);
