#include "common/step.h"
