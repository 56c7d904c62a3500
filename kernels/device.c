#include "kernels/device.h"
