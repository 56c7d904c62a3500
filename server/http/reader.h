/* Reader threads. Each has a read-only connection to the store and answers read-only requests, one snapshot
 * per request. All threads take requests from one queue, in order of arrival. */
#pragma once

#include <stddef.h>

#include "server/store/store.h"

/* Context of a reader's handlers; used by one thread. */
struct mf_reader {
    struct mf_store *store;
};

struct mf_readers;

/* Starts n threads and copies path. Requests are answered with 503 until the database file exists. */
int mf_readers_start(void *zmq, const char *path, int n, struct mf_readers **ret);
/* Finishes requests in progress and joins the threads. r may be NULL. */
struct mf_readers *mf_readers_stop(struct mf_readers *r);
