#include "common/routing.h"
