"""Labels: what a request tells a vLLM host, or a router before several, of its context."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from loadgen.context import Request
from loadgen.errors import UsageError
from loadgen.targets.settings import ROUTED_BY_EVENTS

XARGS = "vllm_xargs"
CONTEXT = "context"
KV_SCOPE = ("model", "cache_salt", "extra_key", "lora_path")
"""Fields of a body by which vLLM and SGLang keep the KV of requests apart."""


class Labels:
    """Puts `vllm_xargs: {"context": …}` into a request's body, where labels are sent at all."""

    def __init__(
        self, enabled: bool, extra_body: Mapping[str, Any], session_by: str = "context"
    ) -> None:
        """`extra_body` is that of all requests, their `model` too; its other `vllm_xargs` stay in.
        `session_by` says which requests a router is to keep together."""
        self._enabled = enabled
        self._session_by = session_by
        self._scope = {name: extra_body.get(name) for name in KV_SCOPE}
        self._xargs = dict(extra_body.get(XARGS) or {})

    def tag(
        self, context_id: str | None, body_extra: Mapping[str, Any] | None = None
    ) -> tuple[Mapping[str, Any] | None, str]:
        """What to add to a request's body, and the label in it; "" is none.

        None for `context_id` is a call about several contexts, or about none: it has no label.
        What `body_extra` itself says of the context wins.
        """
        if not self._enabled or context_id is None:
            return body_extra, ""
        own = (body_extra or {}).get(XARGS) or {}
        xargs = {**self._xargs, CONTEXT: context_id, **own}
        return {**(body_extra or {}), XARGS: xargs}, str(xargs[CONTEXT])

    def kv_scope(self, body_extra: Mapping[str, Any] | None) -> str:
        """The fields of `KV_SCOPE` in which a request is unlike all others, with the model's name
        and digests of the others, which may be secrets; "" is none."""
        if not body_extra:
            return ""
        own = {**self._scope, **body_extra}
        unlike = {name: str(own[name]) for name in KV_SCOPE if own[name] != self._scope[name]}
        return " ".join(
            f"{name}={text if name == 'model' else sha256(text.encode()).hexdigest()[:12]}"
            for name, text in unlike.items()
        )

    def session(self, request: Request, user: str, found: str | None = None) -> str:
        """The value of a request's session header; "" is none. `found` is the context that a
        service found for it, which is all that a real client would know; "" where it refused."""
        if self._session_by == "user":
            return user
        if self._session_by == "conversation":
            return request.session_id
        return request.context_id if found is None else found


def check_labels(labels: str, extra_body: Mapping[str, Any], router: str | None = None) -> None:
    """Raise UsageError where `--extra-body` holds what labels would overwrite, or where the
    `router` of the target looks for no blocks of a request that has such."""
    xargs = extra_body.get(XARGS)
    if router in ROUTED_BY_EVENTS and (labels != "none" or xargs is not None):
        raise UsageError(f"--router {router} is blind to requests with {XARGS}: add --labels none")
    if labels == "none" or xargs is None:
        return
    if not isinstance(xargs, dict) or CONTEXT in xargs:
        raise UsageError(
            f"extra body sets {XARGS}.{CONTEXT}, as labels do: add --labels none to keep yours"
            if isinstance(xargs, dict)
            else f'extra body sets {XARGS} to no JSON object: write {{"{XARGS}": {{"name": 1}}}}'
        )
