#include "common/moe/device_peak.h"

#include "common/base/cleanup.h"

#include <string.h>

#define CDNA3 "AMD CDNA 3 white paper"
#define CDNA4 "AMD CDNA 4 white paper"

/* clang-format off */
static const struct mf_device_peak peaks[] = {
    {"gfx908", 120, "MI100",                 92.3,   0,      0,       184.6,  1228.8, 8,
     "AMD Instinct MI100 data sheet"},
    {"gfx90a", 104, "MI210",                 181,    0,      0,       181,    1638.4, 8,
     "AMD Instinct MI210 data sheet"},
    /* A gfx90a device is one of the two dies of an MI250X, so its figures are half of those in the data
     * sheet. */
    {"gfx90a", 110, "MI250X (one die)",      191.5,  0,      0,       191.5,  1638.4, 8,
     "AMD Instinct MI250X data sheet"},
    {"gfx942", 304, "MI300X, MI325X",        1307.4, 2614.9, 0,       2614.9, 6000,   288,
     CDNA3 ", MI325X data sheet"},
    {"gfx942", 228, "MI300A",                980.6,  1961.2, 0,       1961.2, 5300,   280,
     CDNA3 ", MI300A data sheet"},
    /* AMD publishes no figures for the MI308X. The figures here assume 80 of the MI300X's 304 compute units
     * at the same 2.1 GHz, and the same memory. */
    {"gfx942", 80,  "MI308X",                344.1,  688.1,  0,       688.1,  5300,   288,
     CDNA3 ": 80 compute units at 2.1 GHz"},
    {"gfx950", 256, "MI350X, MI355X",        2516.6, 5033.2, 10066.3, 5033.2, 8000,   288,
     CDNA4 ", MI355X data sheet"},
    {"sm_80",  108, "A100",                  312,    0,      0,       624,    2039,   40,
     "NVIDIA A100 data sheet"},
    {"sm_89",  142, "L40S",                  362.1,  733,    0,       733,    864,    96,
     "NVIDIA L40S data sheet"},
    {"sm_90",  132, "H100 SXM, H200, GH200", 989.5,  1979,   0,       1979,   4900,   60,
     "NVIDIA H100, H200, GH200 data sheets"},
    {"sm_90",  114, "H100 PCIe",             756.5,  1513,   0,       1513,   2039,   50,
     "NVIDIA H100 data sheet"},
    {"sm_100", 148, "B200, GB200",           2500,   5000,   10000,   5000,   8000,   126,
     "NVIDIA GB200 NVL72 data sheet"},
    {"sm_103", 148, "B300, GB300",           2500,   5000,   15000,   0,      8000,   126,
     "NVIDIA GB300 NVL72 data sheet"},
};
/* clang-format on */

const struct mf_device_peak *mf_device_peak_find(const struct mf_device_class *class)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(peaks); i++)
        if (peaks[i].cu_num == class->cu_num && strcmp(peaks[i].gfx, class->gfx) == 0)
            return &peaks[i];
    return NULL;
}

static bool has_amx(const struct mf_device_class *class)
{
    return strstr(class->gfx, "rapids") != NULL;
}

double mf_device_peak_ratio(const struct mf_device_class *class, enum mf_dtype activations)
{
    bool integer = activations == MF_DTYPE_INT8 || activations == MF_DTYPE_INT4;
    int bits = mf_dtype_bits(activations);
    if (!mf_device_class_is_cpu(class))
        return 16.0 / bits;
    if (has_amx(class))
        return bits < 16 ? 32 : 16;
    return integer ? 4 : 1;
}

double mf_device_peak_tflops(const struct mf_device_peak *peak, enum mf_dtype activations)
{
    double tf_8 = peak->tf_8 > 0 ? peak->tf_8 : peak->tf_16;
    switch (activations) {
    case MF_DTYPE_FP8_E4M3FN:
    case MF_DTYPE_FP8_E4M3FNUZ:
        return tf_8;
    case MF_DTYPE_INT8:
    case MF_DTYPE_INT4:
        return peak->ti_8 > 0 ? peak->ti_8 : peak->tf_16;
    case MF_DTYPE_FP4X2:
        return peak->tf_4 > 0 ? peak->tf_4 : tf_8;
    case MF_DTYPE_BF16:
    case MF_DTYPE_FP16:
    case MF_DTYPE_N_:
        break;
    }
    return peak->tf_16;
}
