#include "worker/race.h"
