"""Load generators of others, where they are installed; each runs once in a scenario.

    python tests/bench/client_peers.py

installs those that are not part of kvswarm's own environment, each in one of its own below the
user's cache. vLLM's benchmark is part of the engine that `make setup` installs.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from children import HERE
from client_replies import replies_of_aiperf, replies_of_guidellm, replies_of_vllm
from clients import CONTEXT_TOKENS, Client, Command, Job, cache_folder

from loadgen.targets.demo_model import default_model_dir

VLLM_RESULT, AIPERF_FOLDER, GUIDELLM_RESULT = "vllm.json", "aiperf", "guidellm.json"
PEER_GRACE_S = 180.0
"""Some of them take a minute until their first request."""
AIPERF_SHARE, GUIDELLM_SHARE = 5, 16
"""They send that many times fewer requests in the same time."""


def peers() -> list[Client]:
    """Those that can be run here."""
    vllm = [VLLM] if importlib.util.find_spec("vllm") else []
    return vllm + [client for name, client in OTHERS.items() if executable(name).exists()]


def executable(name: str) -> Path:
    """The command of a peer that has an environment of its own."""
    return cache_folder() / name / "bin" / name


def versions_of_others() -> dict[str, str]:
    """Versions of the peers that have environments of their own."""
    return {
        name: found.version
        for name in OTHERS
        for packages in (cache_folder() / name).glob("lib/python*/site-packages")
        for found in metadata.distributions(name=name, path=[str(packages)])
    }


def _vllm(job: Job) -> Command:
    words = [sys.executable, str(HERE / "client_vllm.py"), "--backend", "openai"]
    words += ["--base-url", job.url, "--endpoint", "/v1/completions", "--model", "mock"]
    words += ["--tokenizer", str(default_model_dir("tiny")), "--dataset-name", "random"]
    words += ["--random-input-len", str(CONTEXT_TOKENS), "--random-output-len", str(job.tokens)]
    words += ["--num-prompts", str(job.requests), "--max-concurrency", str(job.users)]
    words += ["--ready-check-timeout-sec", "0", "--disable-tqdm", "--save-result"]
    words += ["--save-detailed", "--result-dir", str(job.folder)]
    return Command([*words, "--result-filename", VLLM_RESULT], grace_s=PEER_GRACE_S)


def _aiperf(job: Job) -> Command:
    requests = max(job.requests // AIPERF_SHARE, 2 * job.users)
    words = [str(executable("aiperf")), "profile", "--model", "mock", "--url", job.url]
    words += ["--endpoint-type", "completions", "--streaming"]
    words += ["--tokenizer", str(default_model_dir("tiny"))]
    words += ["--concurrency", str(job.users), "--request-count", str(requests)]
    words += ["--isl", str(CONTEXT_TOKENS), "--osl", str(job.tokens), "--export-level", "records"]
    words += ["--artifact-dir", str(job.folder / AIPERF_FOLDER), "--ui", "none"]
    return Command(words, grace_s=PEER_GRACE_S)


def _guidellm(job: Job) -> Command:
    requests = max(job.requests // GUIDELLM_SHARE, 2 * job.users)
    backend = f"kind=openai_http,target={job.url},model=mock,request_format=/v1/completions"
    data = f"kind=synthetic_text,prompt_tokens={CONTEXT_TOKENS},output_tokens={job.tokens}"
    words = [str(executable("guidellm")), "run", "--backend", backend, "--data", data]
    words += ["--profile", f"kind=concurrent,streams={job.users}"]
    words += ["--constraint", f"kind=max_requests,count={requests}"]
    words += ["--tokenizer", f"kind=hf_auto,model={default_model_dir('tiny')}"]
    words += ["--output", f"kind=json,path={job.folder / GUIDELLM_RESULT}", "--disable-console"]
    return Command(words, grace_s=PEER_GRACE_S)


VLLM = Client("vllm bench", _vllm, lambda folder: replies_of_vllm(folder / VLLM_RESULT), slow=True)
OTHERS: Mapping[str, Client] = {
    "aiperf": Client(
        "aiperf", _aiperf, lambda folder: replies_of_aiperf(folder / AIPERF_FOLDER), slow=True
    ),
    "guidellm": Client(
        "guidellm",
        _guidellm,
        lambda folder: replies_of_guidellm(folder / GUIDELLM_RESULT),
        slow=True,
    ),
}
"""By the name of their package, which is also that of their command."""


def install(name: str, say: Callable[[str], object] = sys.stderr.write) -> None:
    """Make a peer's environment, or complete it. Raises CalledProcessError."""
    folder = cache_folder() / name
    say(f"{name} into {folder}: a few minutes\n")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin" / "pip"), "install", "-q", name], check=True)


def main() -> int:
    failed = []
    for name in OTHERS:
        try:
            install(name)
        except (subprocess.CalledProcessError, OSError) as error:
            failed.append(f"{name} cannot be installed: {error}")
    sys.stderr.writelines(f"{line}\n" for line in failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
