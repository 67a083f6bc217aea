#!/usr/bin/env bash
# All tests but those of the benchmarks, shared by three processes; `scripts/test.sh tests/unit` runs a part in one.
set -euo pipefail
cd "$(dirname "$0")/.."
# Threads of torch that wait for each other on cores that others keep busy take many times the work.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# The modules of this checkout, also where .venv was made for another.
export PYTHONPATH="$PWD"
part=
for word in "$@"; do
  case $word in tests | *tests/*) part=1 ;; esac
done
[ -n "$part" ] || set -- -n 3 --no-loadscope-reorder --durations=150 --ignore=tests/bench "$@" tests
exec .venv/bin/pytest "$@"
