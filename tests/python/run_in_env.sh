#!/bin/bash
# Runs a Python test in the environment that scripts/python_env.sh creates, because it needs numpy or torch.
# Without the environment, the test is skipped (status 77).
#
#   tests/python/run_in_env.sh FILE.py
python=${MOEFARM_TEST_PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/moefarm/venv/bin/python}
if [ ! -x "$python" ]; then
    echo "skipped: no PyTorch: $python is missing; scripts/python_env.sh creates it"
    exit 77
fi
exec "$python" "$(dirname "$0")/run_test.py" "$1"
