/* Exclusive file lock (flock) that ends with the process. */
#pragma once

/* Returns -EBUSY if another process holds the lock. Retries for 500 ms first: if a worker is killed while it
 * starts a runner, the child process holds the worker's locks until exec closes the inherited descriptors. */
int mf_lock_file(int fd);
