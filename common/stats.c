#include "common/stats.h"
