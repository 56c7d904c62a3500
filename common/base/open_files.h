/* How many files a process may have open: each connection, runner and spool is some of them. */
#pragma once

#define MF_DESCRIPTORS 65536 /* asked for, where the system grants them */

/* Raises the limit to MF_DESCRIPTORS, or to the most that may be asked for; what is higher stays. Children inherit it. */
int mf_open_files_raise(void);
