/* Device class: gfx and cu_num, the part of the CSV key that identifies the device. Text form: "gfx942/304"
 * or "cpu-znver4/2". Results of one class are never used for another. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define MF_GFX_MAX               32
#define MF_DEVICE_CLASS_TEXT_MAX 48

struct mf_device_class {
    char gfx[MF_GFX_MAX]; /* [a-z0-9_.-]+ */
    int cu_num;           /* compute units (AMD), SMs (NVIDIA) or CPU cores */
};

/* Parses a text form. -EINVAL: the text is not name/number, the name has invalid characters, or the number is
 * below 1. */
int mf_device_class_parse(const char *text, struct mf_device_class *ret);
void mf_device_class_print(const struct mf_device_class *c, char buf[MF_DEVICE_CLASS_TEXT_MAX]);
bool mf_device_class_equal(const struct mf_device_class *a, const struct mf_device_class *b);
/* True for the CPU of a host, whose gfx begins with "cpu-". */
bool mf_device_class_is_cpu(const struct mf_device_class *c);
/* Returns the gfx of a row in a table without a gfx column: gfx950 for cu_num 256, gfx942 for 80 and 304
 * (ROCm/aiter, base_tuner.py); NULL for any other cu_num. */
const char *mf_gfx_of_cu_num(int cu_num);
