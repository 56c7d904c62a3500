/* Exclusive file lock (flock) that ends with the process. */
#pragma once

/* -EBUSY: another process holds the lock. Retries for 500 ms first: if a worker is killed while it starts a
 * runner, the child inherits the locks until exec closes its descriptors. */
int mf_lock_file(int fd);
