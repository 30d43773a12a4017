"""Names of kernels as people write them: demangled, and short."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

_OPEN, _CLOSE = "<([{", ">)]}"
_ANONYMOUS = "(anonymous namespace)"


def demangle(name: str) -> str:
    """Return what a C++ name stands for; any other name, or one that is cut off, as it is."""
    if not name.startswith("_Z"):
        return name
    demangler = _demangler()
    return (demangler(name) if demangler else None) or name


def short_name(demangled: str) -> str:
    """Return the function's own name: no namespace, template arguments, parameters or result.

    >>> short_name("void at::native::copy<float, (int)4>(float*, std::pair<int, int>)")
    'copy'
    """
    text = demangled.replace(_ANONYMOUS, "")
    kept: list[str] = []
    depth = 0
    for character in text:
        if character == "(" and depth == 0 and kept:
            break  # its parameters
        if character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth -= 1
        elif depth == 0:
            kept.append(character)
    return "".join(kept).rsplit("::", 1)[-1].strip().rsplit(" ", 1)[-1] or demangled


@functools.cache
def _demangler() -> Callable[[str], str | None] | None:
    """Return the demangler of the C++ library; None where there is none."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return None
    function = library["__cxa_demangle"]
    function.restype = ctypes.c_void_p
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]

    def call(name: str) -> str | None:
        status = ctypes.c_int()
        address = function(name.encode(), None, None, ctypes.byref(status))
        if not address:
            return None
        text = ctypes.string_at(address).decode(errors="replace")
        free(address)
        return text

    return call
