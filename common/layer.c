#include "common/layer.h"
