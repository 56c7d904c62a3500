/* Counts the tasks (processes and their threads) of a process tree. */
#pragma once

#include <sys/types.h>

/* Returns the number of tasks of all descendants of this process, or a number greater than max as soon as it
 * has counted that many. Reads /proc and allocates no memory, so that it works after fork in a process that
 * had threads. */
int mf_task_count(int max);
