#include "common/log.h"
