"""What the swarm sends: reproducible, shared by workers, never twice without saying so."""

from collections import Counter, defaultdict
from hashlib import sha256
from pathlib import Path

from run_process import HostProcess, Run, run_swarm, run_until, workers_with_rows


def prompts_by_id(rows: list[dict[str, str]]) -> dict[int, tuple[str, str]]:
    return {int(row["request_id"]): (row["context_id"], row["question_id"]) for row in rows}


def test_two_workers_send_what_one_process_sends(host: HostProcess, tmp_path: Path) -> None:
    options = ["--model", "normal", "-u", 4, "-r", 4, "--seed", 3]
    options += ["--contexts", 30, "--zipf", 1, "--stickiness", 0.3, "--repeat", 0.3]
    out = tmp_path / "one"
    (one,) = run_until(lambda: bool(workers_with_rows(out, 60)), host.url, [out], *options)
    pair = tmp_path / "two"
    (two,) = run_until(
        lambda: workers_with_rows(pair, 30) == {"0", "1"},
        *(host.url, [pair], *options, "--processes", 2),
    )
    assert one.code == two.code == 0, one.output + two.output
    sent_by_one, sent_by_two = prompts_by_id(one.rows), prompts_by_id(two.rows)
    common = sent_by_one.keys() & sent_by_two.keys()
    assert len(common) > 50
    assert {i: sent_by_one[i] for i in common} == {i: sent_by_two[i] for i in common}
    assert {row["worker"] for row in two.rows} == {"0", "1"}
    assert two.json("summary.json")["outcomes"] == Counter(row["outcome"] for row in two.rows)
    assert two.json("summary.json")["failed"] == 0
    assert two.json("run.json")["workers"] == 2


def test_repeat_is_true_exactly_for_prompts_sent_before(run: Run, host: HostProcess) -> None:
    ran = run(
        *("--model", "normal", "-u", 4, "-r", 4, "-t", "3s", "--contexts", 4),
        *("--repeat", 0.5, "--processes", 2, "--output-tokens", 4),
    )
    assert ran.code == 0, ran.output
    by_prompt = defaultdict(list)
    for row in ran.rows:
        by_prompt[row["context_id"], row["question_id"]].append(row)
    for rows in by_prompt.values():
        rows.sort(key=lambda row: float(row["sent_s"]))
        assert [row["repeat"] for row in rows] == ["false"] + ["true"] * (len(rows) - 1)
    assert len(set(host.prompts())) == len(by_prompt)
    assert any(len(rows) > 1 for rows in by_prompt.values())


def test_without_repeat_no_prompt_is_sent_twice(run: Run, host: HostProcess) -> None:
    ran = run(
        *("--model", "normal", "-u", 8, "-r", 8, "-t", "3s", "--contexts", 2),
        *("--output-tokens", 1),
    )
    prompts = host.prompts()
    assert len(prompts) > 2 * 8, "more than the questions that two contexts have"
    assert len(set(prompts)) == len(prompts)
    assert {row["repeat"] for row in ran.rows} == {"false"}


def test_context_stands_first_and_is_byte_identical(run: Run, host: HostProcess) -> None:
    run("--model", "normal", "-u", 4, "-r", 4, "-t", "2s", "--contexts", 3, "--output-tokens", 1)
    contexts = {prompt.rpartition("\n\nQuestion: ")[0] for prompt in host.prompts()}
    assert len(contexts) == 3


def test_options_come_from_environment_and_config_file(
    host: HostProcess, tmp_path: Path, monkeypatch: object
) -> None:
    config = tmp_path / "locust.conf"
    config.write_text("contexts = 2\noutput-tokens = 3\n")
    ran = run_swarm(
        host.url,
        tmp_path / "run",
        *("--config", config, "--model", "normal", "-u", 2, "-r", 2, "-t", "2s"),
        env={"LOCUST_SEED": "11"},
    )
    assert ran.code == 0, ran.output
    options = ran.json("run.json")["options"]
    assert (options["contexts"], options["seed"]) == (2, 11)
    assert {row["output_tokens"] for row in ran.rows} == {"3"}


TENANTS = """
from locust import task
from kvswarm import ContextUser

class Tenant(ContextUser):
    @task
    async def ask(self):
        turn = await self.next_turn()
        salt = {"model": "normal", "cache_salt": f"tenant {turn.request.index % 2}"}
        await self.send(turn, body_extra=salt if turn.request.index % 3 else None)
"""


def test_the_salt_of_a_request_stands_in_its_row_as_a_digest(run: Run, tmp_path: Path) -> None:
    locustfile = tmp_path / "tenants.py"
    locustfile.write_text(TENANTS)
    ran = run("--model", "normal", "-u", 2, "-r", 2, "-t", "2s", file=locustfile)
    scopes = {(int(row["request_id"]) % 6, row["kv_scope"]) for row in ran.rows}
    salts = [sha256(f"tenant {n}".encode()).hexdigest()[:12] for n in (0, 1)]
    assert scopes == {
        *((n, "") for n in (0, 3)),
        *((n, f"cache_salt={salts[n % 2]}") for n in (1, 2, 4, 5)),
    }
    assert "tenant 1" not in (tmp_path / "run" / "requests.csv").read_text()
