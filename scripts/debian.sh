#!/usr/bin/env bash
# What tests need of the system, from Debian's packages where they may be installed: a browser for
# those of the web UI (an installed one will do), HAProxy for those of a fleet.
set -euo pipefail

missing=()
if [ -z "${KVSWARM_BROWSER:-}" ]; then
  found=
  for name in chromium chromium-browser google-chrome chrome; do
    command -v "$name" >/dev/null && found=$name
  done
  [ -n "$found" ] || missing+=(chromium)
fi
command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || missing+=(haproxy)

if [ ${#missing[@]} = 0 ]; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || true
  left=()
  for package in "${missing[@]}"; do
    apt-get install -y -qq "$package" >/dev/null || left+=("$package")
  done
  if [ ${#left[@]} = 0 ]; then exit 0; fi
  missing=("${left[@]}")
fi
echo "not installed: ${missing[*]}; their tests need it, e.g. apt-get install ${missing[*]}" >&2
