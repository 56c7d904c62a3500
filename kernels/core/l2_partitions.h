/* Detects which L2 partition of a GPU each SM is attached to.
 *
 * On NVIDIA's large GPUs from sm_80 on, the L2 cache has two partitions, each attached to half of the SMs.
 * Data of the remote partition crosses the fabric between the partitions and is then cached in the local one.
 * SMs that read the same data should therefore share a partition. On an H200, 64 pairs of SMs, with the same
 * data in each pair, read 4.28 TB/s of distinct bytes from HBM if both SMs of a pair are on one partition,
 * and 2.42 TB/s if they are not.
 *
 * No runtime API reports the partition, but the latency of atomic adds reveals it: an atomic add executes in
 * the partition that owns the cache line, and takes 340 cycles if that partition is local and 530 if it is
 * remote. */
#pragma once

#include <stdint.h>

#define MF_SMS_MAX 256

struct mf_l2_halves {
    uint32_t far[MF_SMS_MAX / 32]; /* one bit per SM, set if the SM is not on the partition of SM 0 */
    int near; /* number of SMs on the partition of SM 0; 0 if there is one partition or detection failed */
};

/* Detects the partitions. cycles[sm, line] is the latency of an atomic add from each SM to each of the cache
 * lines, or 0 if it was not measured. */
struct mf_l2_halves mf_l2_halves_of(const uint32_t *cycles, int sms, int lines);
