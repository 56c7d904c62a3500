/* Limit of open file descriptors. Each connection, runner and spool needs several. */
#pragma once

#define MF_DESCRIPTORS 65536 /* desired soft limit */

/* Raises the soft limit to MF_DESCRIPTORS, or to the hard limit if that is lower. Never lowers it. Children
 * inherit the limit. */
int mf_open_files_raise(void);
