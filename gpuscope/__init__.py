"""gpuscope: measure, explain and show how GPU copies, kernels and communication overlap.

For scripts and notebooks: :func:`load` reads a trace, :class:`Trace` answers questions about it,
:func:`load_ranks` reads those of several MPI ranks together, :func:`record` records a part of the
running program.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuscope._version import __version__
from gpuscope.errors import GpuscopeError

if TYPE_CHECKING:
    from gpuscope.loaded import Overlap, Ranks, Trace, load, load_ranks
    from gpuscope.recording.cupti.context import record

__all__ = [
    "GpuscopeError",
    "Overlap",
    "Ranks",
    "Trace",
    "__version__",
    "load",
    "load_ranks",
    "record",
]

_LAZY = {
    "Overlap": "gpuscope.loaded",
    "Ranks": "gpuscope.loaded",
    "Trace": "gpuscope.loaded",
    "load": "gpuscope.loaded",
    "load_ranks": "gpuscope.loaded",
    "record": "gpuscope.recording.cupti.context",
}
"""Names that need NumPy and pandas, and the modules that they come from on first use."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gpuscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
