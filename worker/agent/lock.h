/* Exclusive file lock (flock) that ends with the process. */
#pragma once

/* Returns -EBUSY if another process holds the lock. Retries for 500 ms first, because a child inherits the
 * locks until exec closes its descriptors if a worker is killed while it starts a runner. */
int mf_lock_file(int fd);
