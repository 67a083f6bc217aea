"""routes.md, targets.md and python.md."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scripts.reference.text import code, listing, meanings, page, phrase


def kv_service() -> Any:
    from kv_reading.service import KvService

    labeller: Any = SimpleNamespace(doc_ids=(), questions=0)
    return KvService(labeller, "")


def aiohttp_routes(app: Any) -> str:
    rows = [
        (code(f"{route.method} {route.resource.canonical}"), phrase(route.handler.__doc__))
        for route in app.router.routes()
        if route.method != "HEAD"
    ]
    return listing(rows)


def tab_routes() -> str:
    from flask import Flask

    from dashboards.live_tab.pages import Pages

    app = Flask("flask")
    environment = SimpleNamespace(parsed_options=None)
    view: Any = SimpleNamespace(leader=SimpleNamespace(environment=environment))
    web_ui = SimpleNamespace(app=app, template_args={}, auth_required_if_enabled=lambda of: of)
    Pages(view, web_ui).add()
    rows = [
        (code(f"GET {rule.rule}"), phrase(app.view_functions[rule.endpoint].__doc__))
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith("/kvswarm")
    ]
    return listing(rows)


def routes() -> str:
    return page(
        "Routes",
        "Those of the RAG service stand with their bodies in [Retrieval](retrieval.md#routes).",
        "## The KV service\n\n`kvswarm kv serve`, see [KV labels](../guides/kv-labels.md#labels).",
        aiohttp_routes(kv_service().app()),
        "## The live tab\n\nIn Locust's web UI, behind its login, see"
        " [Live tab](../guides/live-tab.md).",
        tab_routes(),
    )


def targets() -> str:
    from loadgen.stats.server_counters import CACHE_FIGURES, ENGINE_FIGURES
    from loadgen.targets import catalog

    text = Path(catalog.__file__).with_name("catalog.toml").read_text()
    comment = re.match(r"(#.*\n)+", text)
    prose = "\n".join(line[2:] for line in comment[0].splitlines()) if comment else ""
    service = meanings(catalog, "ServiceSpec")
    target = meanings(catalog, "TargetSpec")
    target |= {"extends": "another target that this one is added to", "args": target.pop("extra")}
    target["cache_args"] = "on top of those of its cache"
    example = re.search(r"\[targets\.vllm-no-prefix-cache\](.*\n)+?\n", text)
    return page(
        "Targets in TOML",
        *(
            re.sub(r"\{([a-z0-9_.,]+)\}|(\[\w+(?:\.[\w.]+)?\])", r"`\g<0>`", p)
            for p in prose.split("\n\n")
        ),
        "```toml\n" + (example[0].strip() if example else "") + "\n```",
        "## A service",
        listing((code(name), said) for name, said in service.items()),
        "## A target",
        listing((code(name), said) for name, said in target.items()),
        "## Counters",
        f"Of an engine: {', '.join(map(code, (*ENGINE_FIGURES, catalog.CACHE_INFO)))}.",
        f"Of a cache: {', '.join(map(code, CACHE_FIGURES))}.",
    )


def python() -> str:
    import kvswarm

    rows = []
    for name in kvswarm.__all__:
        found = getattr(kvswarm, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            rows.append((code(name + signature(found)), phrase(found.__doc__)))
            rows += [(code(f"{name}.{each}"), said) for each, said in own_names(found)]
        else:
            values = getattr(found, "__args__", ())
            said = f"one of {', '.join(map(code, values))}" if values else "the installed version"
            rows.append((code(name), said))
    return page(
        "Python names",
        "`from kvswarm import ContextUser, set_defaults` gives what a locustfile needs.",
        listing(rows),
    )


def signature(found: Any) -> str:
    if inspect.isclass(found) and (
        issubclass(found, Exception) or found.__name__.endswith(("User", "Record"))
    ):
        return ""
    names = [
        str(p).partition(":")[0].partition("=")[0].strip()
        for p in inspect.signature(found).parameters.values()
    ]
    return f"({', '.join(names)})"


def own_names(found: Any) -> Iterator[tuple[str, str]]:
    """Public methods of a user class that a locustfile may call or replace."""
    if not (inspect.isclass(found) and "User" in found.__name__):
        return
    for name, value in vars(found).items():
        said = getattr(value, "__doc__", None)
        if not name.startswith("_") and inspect.isfunction(value) and said:
            yield name + "()", phrase(said)
