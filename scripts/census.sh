#!/bin/bash
# Counts what a reader of the sources meets: files per folder, lines, function lengths, long lines, include
# circles.
set -euo pipefail
exec python3 "$(dirname "$0")/census.py"
