"""The client's settings, from the plan and the options of a swarm."""

from typing import Any

from loadgen.client.settings import ClientSettings, auth_headers, parse_extra_body, parse_header
from loadgen.swarm.options.swarm_options import SwarmOptions
from loadgen.swarm.sending.plan import Plan


def extra_body(options: SwarmOptions) -> dict[str, Any]:
    """What `--extra-body` adds to every request. Raises UsageError."""
    return parse_extra_body(options.extra_body) if options.extra_body else {}


def request_headers(options: SwarmOptions) -> dict[str, str]:
    """The API key of the environment and the `--header`s over it. Raises UsageError."""
    return auth_headers() | dict(parse_header(line) for line in options.headers)


def client_settings(plan: Plan, options: SwarmOptions) -> ClientSettings:
    """How this swarm's requests are made."""
    return ClientSettings(
        url=plan.url,
        model=plan.model,
        endpoint="chat" if options.endpoint == "chat" else "completions",
        temperature=options.temperature,
        ignore_eos=plan.is_vllm,
        continuous_usage=plan.is_vllm,
        extra_body=extra_body(options),
        headers=request_headers(options),
        timeout_s=options.timeout_s,
        connect_timeout_s=options.connect_timeout_s,
    )
