# Tests of server/
