#include "common/opts.h"
