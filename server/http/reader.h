/* Reader threads: each holds a read-only connection to the store and works off requests that only read, one
 * snapshot a request. They take from one queue: a request waits only while all of them are busy, in order of arrival. */
#pragma once

#include <stddef.h>

#include "server/store/store.h"

/* What a reader's handlers get: belongs to one thread. */
struct mf_reader {
    struct mf_store *store;
};

struct mf_readers;

/* Starts n threads. The store's file may come later: until then requests are answered by 503. path is copied. */
int mf_readers_start(void *zmq, const char *path, int n, struct mf_readers **ret);
/* Joins them; a request in hand is finished. NULL is fine. */
struct mf_readers *mf_readers_stop(struct mf_readers *r);
