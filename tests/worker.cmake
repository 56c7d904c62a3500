# Tests of worker/
