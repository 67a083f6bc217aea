"""What can go wrong, as one tree. Every message names the thing, the value and the next step.

KvswarmError            exit code 1
├── UsageError          exit code 2: the command line, a file or the host is not what it must be
│   ├── CorpusError     the corpus cannot be read or is empty
│   ├── HostError       the host is unknown, refuses, or does not serve the model
│   └── ContextTooLong  a context cannot fit in the model's window or the engine's cache
├── OutputError         exit code 1, or that of what was to be printed
├── RecordError         exit code 6: what was measured cannot be written
└── TargetError         exit code 3: an engine of ours could not be started, or died
"""


class KvswarmError(Exception):
    """Base of everything kvswarm raises on purpose; `str(error)` is one line for the user."""

    exit_code = 1


class UsageError(KvswarmError):
    """Wrong use, found before any load is sent."""

    exit_code = 2


class CorpusError(UsageError):
    """The corpus or its questions cannot be read, or hold nothing."""


class HostError(UsageError):
    """The host cannot be reached or does not serve what was asked for."""


class ContextTooLong(UsageError):
    """A context does not fit in the model's window or the engine's KV cache."""


class OutputError(KvswarmError):
    """What was to be printed cannot be written."""


class RecordError(KvswarmError):
    """What was measured cannot be written, as on a full disk or where its folder was deleted."""

    exit_code = 6


class TargetError(KvswarmError):
    """An engine of ours could not be started, or died."""

    exit_code = 3
