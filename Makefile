# `make demo` and `make test` set everything up from nothing; a second call starts at once.
.PHONY: help setup demo ui test test-bench test-newest-vllm torture torture-tiers torture-starts lint docs reference bench-client bench-peers bench-scheduler bench-rag bench-gate bench-noise bench-tiers bench-twin bench-twin-speed bench-advise sizing bench-soak bench-workers clean

help:
	@echo "make demo   the same batches on a real vLLM: first come, first served, then by context"
	@echo "make ui     the same from Locust's web UI, at http://127.0.0.1:8089"
	@echo "make test   lint, types and all tests of the product"
	@echo "make test-bench       the tests of the benchmarks themselves"
	@echo "make test-newest-vllm the context scheduler on the newest vLLM, over the installed engine"
	@echo "make torture-tiers    engines and tiers killed, hung, their files damaged, in 20 minutes"
	@echo "make torture-starts   20 starts of every target interrupted: no process and no folder left, 90 minutes"
	@echo "make torture          100 kills and 60 faults at random moments: nothing lost, left or wrong; then torture-tiers"
	@echo "make bench-client     the load engine against bare loops and other load generators"
	@echo "make bench-peers      installs those in environments of their own, for bench-client"
	@echo "make bench-scheduler  vLLM's order against the context scheduler's, in two hours"
	@echo "make bench-rag        how long a label takes, by chunks and beside vLLM, in 30 minutes"
	@echo "make bench-gate       false alarms and misses of kvswarm compare, in 30 minutes"
	@echo "make bench-noise      the same under simulated models of noise, in five minutes"
	@echo "make bench-twin       what a twin predicts against cells that it has not seen, in an hour"
	@echo "make bench-twin-speed  how long a simulation of an hour of traffic takes"
	@echo "make bench-advise     what advice picks against a sweep of every size, in 50 minutes"
	@echo "make sizing           the guide's example: from a run to advice to verification, in ten minutes"
	@echo "make bench-tiers      from which bandwidth on loading KV pays: calculated and measured"
	@echo "make bench-soak       a thousand streams for 20 minutes: nothing lost, memory flat"
	@echo "make bench-workers    one process, one worker and two workers on the same cores"
	@echo "make lint   lint, format and strict types"
	@echo "make docs   builds the documentation as a site and checks its links"
	@echo "make reference        writes docs/reference from the code"
	@echo "make clean  remove .venv, run directories and caches"

setup:
	@scripts/setup.sh

demo: setup
	@.venv/bin/kvswarm demo

ui: setup
	@.venv/bin/kvswarm ui unordered --target vllm --kv-tokens 5120 --context-tokens 1500 -u 8 -r 8

test: setup
	@scripts/debian.sh
	@scripts/lint.sh
	@scripts/test.sh

test-bench: setup
	@scripts/test.sh tests/bench

test-newest-vllm: setup
	@.venv/bin/python scripts/newest_vllm.py

torture-tiers: setup
	@.venv/bin/python tests/torture/tiers.py $(TORTURE)

torture-starts: setup
	@.venv/bin/python tests/torture/torture.py --starts 20 --at-once 1 $(TORTURE)

torture: setup
	@.venv/bin/python tests/torture/torture.py --kills 100 --faults 60 $(TORTURE)
	@.venv/bin/python tests/torture/tiers.py

lint: setup
	@scripts/lint.sh

docs: setup
	@.venv/bin/sphinx-build -q -W --keep-going -b html docs docs/_build
	@echo "docs/_build/index.html"

reference: setup
	@.venv/bin/python -m scripts.reference

bench-client: setup
	@.venv/bin/python tests/bench/client_bench.py $(BENCH)

bench-peers: setup
	@.venv/bin/python tests/bench/client_peers.py

bench-scheduler: setup
	@.venv/bin/python tests/bench/scheduler_study.py; study=$$?; test $$study -eq 0 -o $$study -eq 3 || exit $$study; \
	.venv/bin/python tests/bench/scheduler_bench.py && exit $$study

bench-rag: setup
	@.venv/bin/python tests/bench/rag_bench.py

bench-gate: setup
	@.venv/bin/python tests/bench/gate_bench.py

bench-noise: setup
	@.venv/bin/python tests/bench/noise_bench.py --report docs/measurements

TWIN = runs/bench-twin
CALIBRATE = .venv/bin/kvswarm run calibrate --target vllm --kv-tokens 3584 --context-tokens 100-1300

bench-twin: setup
	@test -d $(TWIN)-calibration || $(CALIBRATE) --out $(TWIN)-calibration
	@.venv/bin/kvswarm sweep tests/bench/twin_cells.toml --out $(TWIN)
	@test -d $(TWIN)-calibration-2 || $(CALIBRATE) --out $(TWIN)-calibration-2
	@.venv/bin/python tests/bench/twin_bench.py $(TWIN) \
		--calibration $(TWIN)-calibration $(TWIN)-calibration-2 --report docs/measurements

bench-twin-speed: setup
	@.venv/bin/python tests/bench/twin_speed.py --report docs/measurements

ADVISE = runs/bench-advise
ADVISE_BENCH = .venv/bin/python tests/bench/advise_bench.py

bench-advise: setup
	@test -d $(ADVISE)-calibration || .venv/bin/kvswarm run calibrate --target vllm --kv-tokens 2816 \
		--context-tokens 100-1300 --out $(ADVISE)-calibration
	@$(ADVISE_BENCH) cells $(ADVISE).toml $(ADVISE)-given.toml
	@.venv/bin/kvswarm sweep $(ADVISE)-given.toml --out $(ADVISE)-given
	@.venv/bin/kvswarm sweep $(ADVISE).toml --out $(ADVISE)
	@$(ADVISE_BENCH) judge $(ADVISE) $(ADVISE)-given $(ADVISE)-calibration --report docs/measurements

sizing: setup
	@.venv/bin/python tests/bench/sizing_example.py runs/sizing --report docs/measurements

bench-tiers: setup
	@.venv/bin/python tests/bench/tiers_bench.py --report docs/measurements

bench-soak: setup
	@.venv/bin/python tests/bench/soak_bench.py $(BENCH)

bench-workers: setup
	@.venv/bin/python tests/bench/workers_bench.py $(BENCH)

clean:
	rm -rf .venv runs build docs/_build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
