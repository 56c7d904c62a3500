#include "common/shape.h"
