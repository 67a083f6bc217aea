import math

from hypothesis import given
from hypothesis import strategies as st

from loadgen.stats.prometheus import MetricReader, Sample

PAGE = b"""\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="model"} 13989.0
vllm:prompt_tokens_created{engine="0",model_name="model"} 1.7952302736572537e+09
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 6181.0
vllm:prompt_tokens_by_source_created{engine="0",source="local_compute"} 1.79e+09
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="model"} 0.0
vllm:num_requests_running{engine="0",model_name="model"} 2.0
process_resident_memory_bytes 7.37386496e+08
"""


def read(page: bytes, *names: str) -> list[Sample]:
    return MetricReader(names).read(page)


def test_only_exactly_the_names_wanted_are_read() -> None:
    names = ("vllm:prompt_tokens_total", "process_resident_memory_bytes", "absent")
    assert read(PAGE, *names) == [
        ("vllm:prompt_tokens_total", {"engine": "0", "model_name": "model"}, 13989.0),
        ("process_resident_memory_bytes", {}, 737386496.0),
    ]
    assert read(PAGE, "vllm:prompt_tokens") == []
    assert read(PAGE, "requests_running") == []


def test_label_values_may_hold_quotes_braces_commas_and_newlines() -> None:
    page = rb'm{a="say \"hi\" }{ = b",b="x\\y\nz",c="",} 1.5 1700000000000' + b"\n"
    assert read(page, "m") == [("m", {"a": 'say "hi" }{ = b', "b": "x\\y\nz", "c": ""}, 1.5)]


def test_an_exemplar_and_spaces_do_not_disturb() -> None:
    page = b'm_total{a="1"}   7 # {trace_id="9"} 1.0\r\nn\t3\n'
    assert read(page, "m_total", "n") == [("m_total", {"a": "1"}, 7.0), ("n", {}, 3.0)]


def test_blanks_before_a_name_and_none_behind_labels_do_not_disturb() -> None:
    page = b'  m{a="1"}7\n\tn 3\n m {a="2"} 8\nm9\nmn 1\n'
    assert read(page, "m", "n") == [("m", {"a": "1"}, 7.0), ("n", {}, 3.0), ("m", {"a": "2"}, 8.0)]


def test_special_values_are_handed_on() -> None:
    nan, high, low = (sample.value for sample in read(b"m NaN\nm +Inf\nm -Inf\n", "m"))
    assert (math.isnan(nan), high, low) == (True, math.inf, -math.inf)


def test_broken_lines_are_skipped_and_the_rest_is_read() -> None:
    page = b'm{a="1\nm{a="2"} x\nm\nm{} \nm }{ 4\n<html>m 5</html>\n\xff\xfe\x00m 6\nm{a="\xff"} 8'
    assert [sample.value for sample in read(page, "m")] == [8.0]


@given(st.binary(max_size=300))
def test_any_bytes_are_accepted(page: bytes) -> None:
    read(page, "m", "a")
    assert read(page.replace(b"\n", b"") + b"\nwanted 1\n", "wanted")[-1].value == 1.0
