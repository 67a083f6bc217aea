#!/usr/bin/env bash
# A browser for the tests of the web UI: an installed one, else Debian's where it may be installed.
set -euo pipefail
for name in chromium chromium-browser google-chrome chrome; do
  command -v "$name" >/dev/null && exit 0
done
if [ -n "${KVSWARM_BROWSER:-}" ]; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq && apt-get install -y -qq chromium >/dev/null
else
  echo "no browser: the tests of the web UI need one, e.g. apt-get install chromium" >&2
fi
