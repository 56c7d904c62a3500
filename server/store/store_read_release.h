/* What the API reads of releases and channels, each call in the caller's snapshot. -ENOENT for what does not exist. */
#pragma once

#include "server/store/store_read.h"
#include "server/store/store_release.h"

/* Newest first; name and sha256 may be NULL. */
int mf_read_releases(struct mf_store *s, const char *name, const char *sha256, const struct mf_page *page,
                     struct mf_list *ret);
int mf_read_release(struct mf_store *s, int64_t id, cJSON **ret);
/* Rows with where they come from, in the table's order. */
int mf_read_release_rows(struct mf_store *s, int64_t id, const struct mf_page *page, struct mf_list *ret);
/* Key by key against an older one; 0: the one before it. */
int mf_read_release_diff(struct mf_store *s, int64_t id, int64_t against, cJSON **ret);

enum mf_release_file { MF_RELEASE_CSV, MF_RELEASE_MANIFEST };
/* Its bytes, held against their hash: -EBADMSG when they are not those that were frozen. */
int mf_read_release_file(struct mf_store *s, int64_t id, enum mf_release_file what, struct mf_buf *out,
                         char ret_sha256[MF_SHA256_TEXT_MAX]);

int mf_read_channels(struct mf_store *s, const struct mf_page *page, struct mf_list *ret);
int mf_read_channel(struct mf_store *s, const char *name, cJSON **ret);
/* Its moves, latest first. */
int mf_read_channel_moves(struct mf_store *s, const char *name, const struct mf_page *page,
                          struct mf_list *ret);
/* What is pulled by it: the release's number, name and hash. -ENODATA: nothing was approved yet. */
int mf_read_channel_current(struct mf_store *s, const char *name, int64_t *ret_release,
                            char ret_name[MF_RELEASE_NAME_MAX], char ret_sha256[MF_SHA256_TEXT_MAX]);
