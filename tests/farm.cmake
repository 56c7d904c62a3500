# Tests that start real processes
