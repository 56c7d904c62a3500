#!/bin/bash
# Prints size and structure of the sources: files per folder, lines, function lengths, long lines, include
# circles.
set -euo pipefail
exec python3 "$(dirname "$0")/census.py"
