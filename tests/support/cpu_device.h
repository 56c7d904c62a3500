/* The CPU device of this machine, for tests that run moefarm on it. */
#pragma once

#include "common/base/text.h"
#include "kernels/core/device.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"

static char class_text[MF_DEVICE_CLASS_TEXT_MAX]; /* "cpu-znver4,2" */

/* Opens cpu:0 and sets class_text. Call this in the process of each test, because the threads of a device do
 * not survive fork(). */
static inline struct mf_device *open_cpu(void)
{
    struct mf_device *device;
    char why[320] = "";

    ck_assert_msg(mf_device_open("cpu:0", why, sizeof(why), &device) == 0, "%s", why);
    mf_format(class_text, sizeof(class_text), "%s,%d", device->info.class.gfx, device->info.class.cu_num);
    return device;
}

/* Setup of a test that needs the class and a folder. */
static inline void find_class(void)
{
    mf_device_close(open_cpu());
    make_folder();
}
