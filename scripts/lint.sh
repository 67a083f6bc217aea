#!/usr/bin/env bash
# Lint, format and strict types.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/ruff check
.venv/bin/ruff format --check
.venv/bin/mypy
