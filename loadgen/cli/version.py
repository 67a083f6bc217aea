"""`kvswarm --version`."""

from importlib.metadata import version


def version_command(arguments: list[str]) -> int:
    """Print the version."""
    print(f"kvswarm {version('kvswarm')}")
    return 0
