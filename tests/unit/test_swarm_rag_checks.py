"""What is said of `--labels` offline, in a process of its own: importing Locust patches it."""

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

SCRIPT = """
import json, sys
from loadgen.errors import UsageError
from loadgen.swarm.options.swarm_options import SwarmOptions
from loadgen.swarm.leading.rag_checks import check_arm, rag_notes
from loadgen.workload.corpus import load_corpus

corpus = load_corpus()

def said(values, batched):
    try:
        options = SwarmOptions.read(values)
        check_arm(options, corpus, batched)
    except UsageError as error:
        return str(error)
    return "" if options.labels in ("rag", "kv") else " ".join(rag_notes(None, options, corpus))

print(json.dumps([said(*case) for case in json.load(sys.stdin)]))
"""

RAG = {"labels": "rag", "rag_url": "http://127.0.0.1:8090"}
CASES: dict[str, tuple[dict[str, Any], bool, str]] = {
    "oracle": ({}, False, ""),
    "rag": (RAG, False, ""),
    "a service that is yet to start": ({"labels": "rag"}, False, ""),
    "labels by KV": ({**RAG, "labels": "kv"}, False, ""),
    "batches by KV": ({**RAG, "labels": "kv"}, True, "--labels kv is for single requests"),
    "wrong contexts by KV": ({**RAG, "labels": "kv", "rag_wrong": 0.1}, False, "give --labels rag"),
    "composed by KV": ({"labels": "kv", "contexts": 500}, False, "what --labels kv finds"),
    "share": ({**RAG, "rag_wrong": 1.0}, False, ""),
    "shuffled batches": ({"labels": "shuffled"}, True, ""),
    "share above": ({**RAG, "rag_wrong": 1.01}, False, "--rag-wrong 1.01 is out of range: give a"),
    "share below": ({**RAG, "rag_wrong": -0.1}, False, "from 0 to 1"),
    "share of nothing": ({"rag_wrong": 0.1}, False, "give --labels rag"),
    "no such arm": ({"labels": "guess"}, False, "choose oracle, none, shuffled, rag"),
    "nothing to confuse": ({**RAG, "rag_wrong": 0.1, "contexts": 1}, False, "give 2 or more"),
    "nothing to shuffle": ({"labels": "shuffled", "contexts": 1}, False, "give 2 or more"),
    "batches": (RAG, True, "the locustfile rag"),
    "composed contexts": ({**RAG, "contexts": 500}, False, "--contexts 500 is more than"),
    "no scheme": ({**RAG, "rag_url": "127.0.0.1:8090"}, False, "--rag-url: host '127.0.0.1:8090'"),
    "not asked": ({**RAG, "labels": "oracle"}, False, "--rag-url is not used with --labels oracle"),
    "a password": ({**RAG, "rag_url": "http://me:pw@x"}, False, "credentials"),
}


@cache
def answers() -> dict[str, str]:
    cases = json.dumps([(values, batched) for values, batched, _ in CASES.values()])
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, input=cases, capture_output=True, text=True, timeout=60, check=True
    )
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_one_line_says_what_is_wrong(name: str) -> None:
    said = CASES[name][2]
    assert said in answers()[name]
    assert bool(said) == bool(answers()[name])
    assert "pw" not in answers()[name]
