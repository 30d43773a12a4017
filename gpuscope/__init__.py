"""gpuscope: measure, explain and show how GPU copies, kernels and communication overlap."""

from gpuscope._version import __version__

__all__ = ["__version__"]
