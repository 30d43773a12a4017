"""Interval arithmetic on many groups at once: pure NumPy, int64 nanoseconds, half open.

A set of intervals is two arrays ``start``, ``end`` of shape (n,), int64, with ``start <= end``.
*Disjoint* means sorted, non-empty and not touching: what :func:`union` returns.

The functions with ``group`` work on many independent timelines in one pass. Groups are numbers
from 0; each group's figures are those that the function would give for its intervals alone. They
do it by laying the timelines end to end on one axis (:class:`Axis`), so that nothing loops over
groups or events in Python.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
"""A one-dimensional array of int64."""
