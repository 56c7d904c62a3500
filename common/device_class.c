#include "common/device_class.h"
