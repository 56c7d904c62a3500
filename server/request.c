#include "server/request.h"
