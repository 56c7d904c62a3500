# Tests of common/
