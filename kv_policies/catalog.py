"""Policies by their names: those of the folder `policies`, a file each, and files of users."""

import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import kv_policies.policies as policies
from kv_policies.policy import KvPolicy, PolicyError, parameters_of

MOST_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A name that a policy may be asked for by; `example` has its default parameters."""

    name: str
    policy: type[KvPolicy]
    fixed: tuple[tuple[str, Any], ...]

    @property
    def example(self) -> str:
        return self.policy(**dict(self.fixed)).label

    @property
    def summary(self) -> str:
        return self.policy.summary


def known_policies() -> dict[str, CatalogEntry]:
    """All policies that can be had here, in the order of their names."""
    return {name: each for name, each in _all_policies().items() if not _missing(each.policy)}


def _missing(policy: type[KvPolicy]) -> str:
    """The package that a policy needs and that is not installed, empty where there is none."""
    return "" if not policy.needs or find_spec(policy.needs) else policy.needs


@cache
def _all_policies() -> dict[str, CatalogEntry]:
    found: list[CatalogEntry] = []
    for module in pkgutil.iter_modules(policies.__path__):
        found += _entries(import_module(f"{policies.__name__}.{module.name}"))
    return {each.name: each for each in sorted(found, key=lambda each: each.name)}


def policy_named(name: str) -> KvPolicy:
    """The policy of a name such as `window:132` or `my_policy.py:MyPolicy:8+64`, with its default
    parameters where the name has none. Raises PolicyError."""
    file, is_file, rest = name.partition(".py:")
    if is_file:
        class_name, _, numbers = rest.partition(":")
        return _made(name, _of_file(Path(f"{file}.py"), class_name), {}, numbers)
    family, _, numbers = name.partition(":")
    known = _all_policies()
    if family not in known:
        near = get_close_matches(family, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose of {', '.join(known_policies())}"
        raise PolicyError(f"no policy {family!r}: {hint}")
    entry = known[family]
    if package := _missing(entry.policy):
        raise PolicyError(f"policy {family} needs {package}: pip install --no-deps {package}")
    return _made(name, entry.policy, dict(entry.fixed), numbers)


def _made(name: str, policy: type[KvPolicy], fixed: dict[str, Any], numbers: str) -> KvPolicy:
    wanted = parameters_of(policy)
    given = [_number(name, each) for each in numbers.split("+")] if numbers else []
    if given and len(given) != len(wanted):
        asked = "+".join(each.upper() for each in wanted) or "no parameters"
        raise PolicyError(f"policy {name!r} has {len(given)} parameters: give {asked}")
    try:
        return policy(**fixed, **dict(zip(wanted, given, strict=False)))
    except PolicyError:
        raise
    except Exception as error:
        if not isinstance(error, TypeError) and policy.__module__.startswith("kv_policies."):
            raise
        raise PolicyError(f"policy {name!r} cannot be made: {error}") from error


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text[:12]) > MOST_TOKENS:
        raise PolicyError(f"policy {name!r}: {text!r} is no number of tokens, heads or layers")
    return int(text)


def _entries(module: ModuleType) -> Iterator[CatalogEntry]:
    for _, found in inspect.getmembers(module, inspect.isclass):
        if issubclass(found, KvPolicy) and found.__module__ == module.__name__:
            for name, fixed in found.variants().items():
                yield CatalogEntry(name, found, tuple(fixed.items()))


def _of_file(file: Path, class_name: str) -> type[KvPolicy]:
    """The class in a user's file. Raises PolicyError, also for what the file itself raises."""
    if not file.is_file():
        raise PolicyError(f"there is no file {file}: give FILE.py:CLASS")
    named = f"kv_policy_{sha256(str(file.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(named, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[named] = module  # dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PolicyError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
    found = getattr(module, class_name, None)
    if not (inspect.isclass(found) and issubclass(found, KvPolicy)):
        raise PolicyError(f"{file} has no policy {class_name!r}: give a class made of KvPolicy")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise PolicyError(f"{file}: {class_name} lacks the method {missing}")
    return found


def source_sha256(policy: KvPolicy) -> str:
    """Of the file of a user's own policy, empty for one of ours."""
    module = type(policy).__module__
    file = sys.modules[module].__file__
    if module.startswith("kv_policies.") or file is None:
        return ""
    return sha256(Path(file).read_bytes()).hexdigest()
