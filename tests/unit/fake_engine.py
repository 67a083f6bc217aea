"""A program that behaves as an engine does, or fails as one: started by tests as a service."""

import argparse
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 16
CATALOG = """
[services.engine]
argv = ["{python}", "ENGINE", "--port", "{port}", "--window", "4096"]
ready = "/health"
reset = "/reset"
block_size = { cpu = 16, gpu = 16 }

[targets.sound]
services = ["engine"]
""".replace("ENGINE", __file__)
"""A file for `--targets`: the target `sound` is this program."""


def main() -> None:
    options = _options()
    if options.fail:
        raise ValueError(options.fail)
    if options.litter:
        assert not any(options.litter.iterdir()), "the directory is not empty"
        (options.litter / "litter").touch()
    if options.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.child:
        # A child in a session of its own, which does not leave when asked to.
        code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    ThreadingHTTPServer(("127.0.0.1", options.port), _handler(options)).serve_forever()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--blocks", type=int, default=11)
    parser.add_argument("--fail", help="raise a ValueError with this text at start")
    parser.add_argument("--busy", type=int, default=0, help="refuse this many resets")
    parser.add_argument("--no-reset", action="store_true")
    parser.add_argument("--disk", type=Path, help="keep the cache here, whatever happens")
    parser.add_argument("--deaf", action="store_true", help="do not leave on SIGTERM")
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--litter", type=Path, help="leave a file in this empty directory")
    parser.add_argument("--window", type=int, default=160, help="max_model_len")
    parser.add_argument("--sick", action="store_true", help="answer 500 to every streamed request")
    parser.add_argument("--counters", default="", help="at /stats, with names that begin so")
    parser.add_argument("--wants", help="refuse what has no such field, or no text as its prompt")
    parser.add_argument("--lives", type=int, help="die at the streamed request after so many")
    return parser.parse_args()


def _handler(options: argparse.Namespace) -> type[BaseHTTPRequestHandler]:
    cache: set[str] = set()
    refusals = iter(range(options.busy))
    streamed = argparse.Namespace(tokens=0)
    lives = iter(range(options.lives)) if options.lives is not None else repeat(0)

    def complete(body: dict[str, Any]) -> dict[str, Any]:
        prompt = json.dumps(body["prompt"])
        if options.disk and options.disk.exists():
            cache.update(options.disk.read_text().splitlines())
        full = len(body["prompt"]) // BLOCK_TOKENS * BLOCK_TOKENS
        cached = full if prompt in cache else 0
        cache.add(prompt)
        if options.disk:
            options.disk.write_text("\n".join(cache))
        return {"usage": {"prompt_tokens_details": {"cached_tokens": cached}}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                labels = f'block_size="{BLOCK_TOKENS}",num_gpu_blocks="{options.blocks}"'
                kept = f"kept_bytes {len(cache)}"
                self._answer(200, f"vllm:cache_config_info{{{labels}}} 1.0\n{kept}\n")
            elif self.path == "/stats" and options.counters:
                tokens = streamed.tokens
                rows = f'in{{of="prompt"}} {tokens}', f'in{{of="cache"}} {tokens // 4}', "at_work 2"
                self._answer(200, "".join(f"{options.counters}{row}\n" for row in rows))
            elif self.path == "/v1/models":
                self._answer(
                    200, json.dumps({"data": [{"id": "m", "max_model_len": options.window}]})
                )
            else:
                self._answer(503 if options.never_ready else 200, "")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
            prompt = body.get("prompt")
            if prompt and options.wants and not (options.wants in body and type(prompt) is str):
                self._answer(422, f"no {options.wants}")
            elif self.path == "/v1/completions" and body.get("stream"):
                self._stream(body["max_tokens"], body["prompt"] == "Hi")
            elif self.path == "/v1/completions":
                self._answer(200, json.dumps(complete(body)))
            elif self.path == "/reset" and not options.no_reset:
                success = next(refusals, None) is None
                if success:
                    cache.clear()
                self._answer(200, json.dumps({"success": success}))
            else:
                self._answer(404, "")

        def _stream(self, tokens: int, is_tried: bool) -> None:
            if not is_tried and next(lives, None) is None:
                os._exit(7)
            if options.sick:
                self._answer(500, "")
                return
            streamed.tokens += 0 if is_tried else 100
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            if name := os.environ.get("KVSWARM_ENGINE"):
                self.send_header("X-Served-By", name)
            self.end_headers()
            usage = {"prompt_tokens": 100, "completion_tokens": tokens}
            for number in range(tokens):
                reason = "length" if number + 1 == tokens else None
                choice = {"index": 0, "text": " word", "finish_reason": reason}
                self._event({"choices": [choice]})
            self._event({"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")

        def _event(self, fields: dict[str, Any]) -> None:
            self.wfile.write(f"data: {json.dumps(fields)}\n\n".encode())

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


if __name__ == "__main__":
    main()
