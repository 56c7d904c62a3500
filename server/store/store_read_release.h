/* Database queries of the REST API for releases and channels, each in the caller's snapshot. -ENOENT: no such
 * release or channel. */
#pragma once

#include "server/store/store_read.h"
#include "server/store/store_release.h"

/* Lists releases, newest first. name and sha256 may be NULL. */
int mf_read_releases(struct mf_store *s, const char *name, const char *sha256, const struct mf_page *page,
                     struct mf_list *ret);
int mf_read_release(struct mf_store *s, int64_t id, cJSON **ret);
/* Lists the rows of a release with their origin, in table order. */
int mf_read_release_rows(struct mf_store *s, int64_t id, const struct mf_page *page, struct mf_list *ret);
/* Compares a release by key with the older release `against`; 0: with the previous release. */
int mf_read_release_diff(struct mf_store *s, int64_t id, int64_t against, cJSON **ret);

/* A release has a CSV table or, for vLLM and SGLang, configuration files. */
enum mf_release_file { MF_RELEASE_CSV, MF_RELEASE_CONFIGS, MF_RELEASE_MANIFEST };
/* Appends a file of the release. -EBADMSG: the file's SHA-256 differs from the stored SHA-256. -ENOTSUP: the
 * release has a CSV table instead of configuration files, or the reverse. */
int mf_read_release_file(struct mf_store *s, int64_t id, enum mf_release_file what, struct mf_buf *out,
                         char ret_sha256[MF_SHA256_TEXT_MAX]);

int mf_read_channels(struct mf_store *s, const struct mf_page *page, struct mf_list *ret);
int mf_read_channel(struct mf_store *s, const char *name, cJSON **ret);
/* Lists the moves of a channel, latest first. */
int mf_read_channel_moves(struct mf_store *s, const char *name, const struct mf_page *page,
                          struct mf_list *ret);
/* Finds id, name and hash of the channel's current release. -ENODATA: no release has been approved yet. */
int mf_read_channel_current(struct mf_store *s, const char *name, int64_t *ret_release,
                            char ret_name[MF_RELEASE_NAME_MAX], char ret_sha256[MF_SHA256_TEXT_MAX]);
