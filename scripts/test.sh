#!/usr/bin/env bash
# All tests; `scripts/test.sh tests/unit` runs a part.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/pytest "${@:-tests}"
