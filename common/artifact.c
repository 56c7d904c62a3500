#include "common/artifact.h"
