"""How to install what an extra of kvswarm brings, by a command that works where it is installed.

`pip install 'kvswarm[rag]'` needs an index that has the project.
"""

import json
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit


def install_command(extras: str) -> str:
    """`pip install` of `extras`, several with commas between: from the clone or wheel that this
    kvswarm came from where that is still there, else of the packages that they stand for."""
    found = list(distributions(name="kvswarm"))  # run in a clone, also what a build left in it
    if not found:
        return f"pip install '.[{extras}]' in a clone"
    source = next(filter(None, map(_source, found)), None)
    if source is not None:
        return f"pip install '{source}[{extras}]'"
    from packaging.requirements import Requirement  # only for who lacks something

    wanted = extras.split(",")
    packages = dict.fromkeys(
        f"'{each.name}{each.specifier}'"
        for each in map(Requirement, found[0].requires or ())
        if each.marker is not None and any(each.marker.evaluate({"extra": x}) for x in wanted)
    )
    return f"pip install {' '.join(packages)}"


def _source(kvswarm: Distribution) -> Path | None:
    """The folder or file that it was installed from."""
    told = kvswarm.read_text("direct_url.json")
    url = urlsplit(json.loads(told)["url"]) if told else None
    path = Path(unquote(url.path)) if url is not None and url.scheme == "file" else None
    return path if path is not None and path.exists() else None
