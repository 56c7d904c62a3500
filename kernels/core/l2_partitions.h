/* Detects the L2 partition to which each SM of a GPU is attached.
 *
 * On NVIDIA's large GPUs from sm_80 on, the L2 cache has two partitions, each attached to half of the SMs. If
 * an SM reads data that the other partition owns, the data crosses the fabric between the partitions and is
 * then cached in the SM's own partition. SMs that read the same data should therefore share a partition. An
 * example on an H200: 64 pairs of SMs read from HBM, and both SMs of a pair read the same data. All pairs
 * together read 4.28 TB/s if the two SMs of a pair are on one partition, but 2.42 TB/s if they are on
 * different partitions. Data that both SMs read counts once.
 *
 * No runtime API reports the partition, but the latency of atomic adds reveals it: an atomic add executes in
 * the partition that owns the cache line. It takes 340 cycles if the SM is attached to that partition, and
 * 530 cycles otherwise. */
#pragma once

#include <stdint.h>

#define MF_SMS_MAX 256

struct mf_l2_halves {
    uint32_t far[MF_SMS_MAX / 32]; /* one bit per SM: 1 if the SM is not on the partition of SM 0 */
    /* number of SMs on the partition of SM 0; 0 if there is only one partition or detection failed */
    int near;
};

/* Detects the partitions from cycles[sm, line], the latency of an atomic add by the SM to the cache line, or
 * 0 if it was not measured. */
struct mf_l2_halves mf_l2_halves_of(const uint32_t *cycles, int sms, int lines);
