/* Detects which L2 partition of a GPU each SM is attached to.
 *
 * On NVIDIA's large GPUs from sm_80 on, the L2 cache has two partitions, each attached to half of the SMs.
 * Data of the remote partition crosses the fabric between the two and is then cached in the local one. SMs
 * that read the same data should share a partition: on an H200, 64 pairs of SMs with the same data in each
 * pair read 4.28 TB/s of distinct bytes from HBM if both SMs of a pair are on one partition, and 2.42 TB/s if
 * they are not.
 *
 * No runtime API reports the partition, but the latency of atomic adds does: they execute in the partition
 * that owns the cache line, and take 340 cycles if it is the local one and 530 if it is the remote one. */
#pragma once

#include <stdint.h>

#define MF_SMS_MAX 256

struct mf_l2_halves {
    uint32_t far[MF_SMS_MAX / 32]; /* bit per SM: attached to the other partition than SM 0 */
    int near; /* number of SMs on the partition of SM 0; 0: one partition, or not detected */
};

/* cycles[sm, line]: latency of an atomic add from each SM to each of the cache lines; 0 if not measured. */
struct mf_l2_halves mf_l2_halves_of(const uint32_t *cycles, int sms, int lines);
