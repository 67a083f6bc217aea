#!/usr/bin/env bash
# All tests, shared by three processes; `scripts/test.sh tests/unit` runs a part in one.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- -n 3 --no-loadscope-reorder tests
exec .venv/bin/pytest "$@"
