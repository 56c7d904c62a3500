/* A lock on a file that one process at a time may have; it goes with the process. */
#pragma once

/* -EBUSY: another one has it. Waits a moment before it says so: a worker that is killed while it starts a runner leaves its
 * locks to that child, until the child has executed and its descriptors are closed. */
int mf_lock_file(int fd);
