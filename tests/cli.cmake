# Tests of cli/
