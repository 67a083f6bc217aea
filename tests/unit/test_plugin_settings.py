"""Settings of the plugin: where they come from, and that a wrong one never passes in silence."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_plugin.settings import OrderSettings, SettingsError


def read(config: object = None, **environment: str) -> OrderSettings:
    return OrderSettings.read({} if config is None else config, environment)


def section(**values: Any) -> dict[str, Any]:
    return {"context_scheduler": values}


def test_nothing_said_gives_the_defaults() -> None:
    assert read() == OrderSettings()
    assert read(section(), PATH="/bin") == OrderSettings()


def test_each_setting_of_the_additional_config() -> None:
    chosen: dict[str, Any] = {
        "policy": "prefix-group",
        "key": "label",
        "quantum": 1,
        "max_overtakes": 0,
        "max_wait_s": 2.5,
        "window": 1,
        "min_kv_usage": 1,
        "strict": True,
    }
    assert read(section(**chosen)) == OrderSettings(**chosen)


def test_each_setting_of_the_environment() -> None:
    found = read(
        CONTEXT_SCHEDULER_POLICY="fcfs",
        CONTEXT_SCHEDULER_KEY="prefix",
        CONTEXT_SCHEDULER_QUANTUM="8",
        CONTEXT_SCHEDULER_MAX_OVERTAKES="9",
        CONTEXT_SCHEDULER_MAX_WAIT_S="0.5",
        CONTEXT_SCHEDULER_WINDOW="10",
        CONTEXT_SCHEDULER_MIN_KV_USAGE="0.75",
        CONTEXT_SCHEDULER_STRICT="true",
    )
    assert found == OrderSettings("fcfs", "prefix", 8, 9, 0.5, 10, 0.75, True)


def test_the_command_line_wins_over_the_environment() -> None:
    config = section(quantum=4, max_wait_s=None)
    found = read(config, CONTEXT_SCHEDULER_QUANTUM="8", CONTEXT_SCHEDULER_MAX_WAIT_S="3")
    assert (found.quantum, found.max_wait_s) == (4, None)
    assert read(config, CONTEXT_SCHEDULER_WINDOW="7").window == 7


@pytest.mark.parametrize(
    ("text", "strict"),
    [("1", True), ("0", False), ("true", True), ("True", True), ("false", False)],
)
def test_strict_in_the_environment(text: str, strict: bool) -> None:
    assert read(CONTEXT_SCHEDULER_STRICT=text).strict is strict


def test_no_longest_wait_in_the_environment() -> None:
    assert read(CONTEXT_SCHEDULER_MAX_WAIT_S="null").max_wait_s is None


def test_a_wait_longer_than_any_float_is_a_wait() -> None:
    assert read(CONTEXT_SCHEDULER_MAX_WAIT_S="1" + "0" * 400).max_wait_s == 10**400


def test_a_whole_float_is_a_whole_number() -> None:
    quantum = read(section(quantum=32.0)).quantum
    assert quantum == 32
    assert isinstance(quantum, int)


@pytest.mark.parametrize(
    ("name", "value", "shown", "allowed"),
    [
        ("policy", "lmp", '"lmp"', "one of fcfs, reuse, lpm, prefix-group"),
        ("policy", None, "null", "one of fcfs, reuse, lpm, prefix-group"),
        ("policy", ["lpm"], '["lpm"]', "one of fcfs, reuse, lpm, prefix-group"),
        ("key", "session", '"session"', "one of auto, label, prefix"),
        ("quantum", 0, "0", "a whole number of at least 1"),
        ("quantum", True, "true", "a whole number of at least 1"),
        ("quantum", "32", '"32"', "a whole number of at least 1"),
        ("quantum", 1.5, "1.5", "a whole number of at least 1"),
        ("quantum", math.inf, "Infinity", "a whole number of at least 1"),
        ("max_overtakes", -1, "-1", "a whole number of at least 0"),
        ("max_overtakes", None, "null", "a whole number of at least 0"),
        ("window", 0, "0", "a whole number of at least 1"),
        ("max_wait_s", 0, "0", "a number of seconds above 0, or null"),
        ("max_wait_s", math.nan, "NaN", "a number of seconds above 0, or null"),
        ("max_wait_s", math.inf, "Infinity", "a number of seconds above 0, or null"),
        ("max_wait_s", True, "true", "a number of seconds above 0, or null"),
        ("min_kv_usage", 1.01, "1.01", "a number from 0 to 1"),
        ("min_kv_usage", -0.1, "-0.1", "a number from 0 to 1"),
        ("min_kv_usage", "half", '"half"', "a number from 0 to 1"),
        ("strict", 1, "1", "true or false"),
        ("strict", "yes", '"yes"', "true or false"),
    ],
)
def test_a_value_that_cannot_be(name: str, value: object, shown: str, allowed: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        read(section(**{name: value}))
    said = str(refusal.value)
    assert f"setting {name} is {shown}, but must be {allowed}" in said
    assert "\n" not in said


@pytest.mark.parametrize("text", ["many", "0", "true", "1.5", "nan"])
def test_a_variable_that_cannot_be(text: str) -> None:
    with pytest.raises(SettingsError, match=r"setting quantum is .*at least 1"):
        read(CONTEXT_SCHEDULER_QUANTUM=text)


def test_not_even_strict_off_lets_a_wrong_setting_pass() -> None:
    with pytest.raises(SettingsError):
        read(section(strict=False, quantum=0))


def test_an_unknown_setting() -> None:
    with pytest.raises(SettingsError, match=r"no setting 'quantom' .*quantum"):
        read(section(quantom=3))


def test_an_unknown_variable() -> None:
    with pytest.raises(SettingsError, match=r"CONTEXT_SCHEDULER_QUANTOM .*CONTEXT_SCHEDULER_QUANT"):
        read(CONTEXT_SCHEDULER_QUANTOM="3")


def test_variables_of_a_service_with_our_name_are_not_ours() -> None:
    """Kubernetes sets these in every pod beside a service `context-scheduler`."""
    service = {"CONTEXT_SCHEDULER_SERVICE_HOST": "10.0.0.1", "CONTEXT_SCHEDULER_PORT": "tcp://x"}
    assert read(**service) == OrderSettings()


def test_an_empty_variable_is_unset() -> None:
    assert read(CONTEXT_SCHEDULER_QUANTUM="") == OrderSettings()


@pytest.mark.parametrize("name", ["context-scheduler", "Context_Scheduler", "context_schedular"])
def test_a_section_misspelt(name: str) -> None:
    with pytest.raises(SettingsError, match=f"'{name}'.*under 'context_scheduler'"):
        read({name: {"quantum": 3}})


def test_what_others_say_in_the_additional_config_is_theirs() -> None:
    assert read({"gdn_prefill_backend": "x", "scheduler": 1, **section(quantum=3)}).quantum == 3


@pytest.mark.parametrize("value", ["lpm", None, ["lpm"], 3])
def test_a_section_that_is_no_object(value: object) -> None:
    with pytest.raises(SettingsError, match="must be an object"):
        read({"context_scheduler": value})


def test_an_additional_config_of_another_kind() -> None:
    """A platform may put an object of its own there."""
    assert read(SimpleNamespace(compute_hash=lambda: "x"), CONTEXT_SCHEDULER_WINDOW="2").window == 2
    assert read(SimpleNamespace(context_scheduler={"window": 3})).window == 3
