/* Which units of a GPU are near to which half of its last cache.
 *
 * The last cache of NVIDIA's large GPUs since sm_80 is two halves, each joined to half of the units. What is at home in the other half comes
 * through a fabric between the two, once for as long as the own half keeps it. So units that read the same should be of one half: on an
 * H200, 128 units that each read what another one reads, too, get 4.28 TB/s of distinct bytes from memory where the two are of one half,
 * and 2.42 where they are not (docs/measurements.md). No runtime tells; adds to memory do, which are made where a line is at home:
 * 340 or 530 cycles. */
#pragma once

#include <stdint.h>

#define MF_UNITS_MAX 256

struct mf_l2_halves {
    uint32_t far[MF_UNITS_MAX / 32]; /* a bit for each unit: it is near to the other half than unit 0 is */
    int near; /* units that are not; 0: there are no halves, or they could not be told apart */
};

/* cycles[unit, line]: what an add of each unit to each of some lines took; 0: the unit was not measured. */
struct mf_l2_halves mf_l2_halves_of(const uint32_t *cycles, int units, int lines);
