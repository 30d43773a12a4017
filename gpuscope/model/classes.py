"""Operation classes: their codes, and the rules that sort kernels into them.

The class of a copy follows from its kind and memory; that of a kernel from patterns on its base
name. The patterns are data (``classes.toml`` beside this file); users add their own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from gpuscope.errors import UsageError

CLASSES = (
    "kernel",
    "comm",
    "fused",
    "h2d",
    "d2h",
    "d2d",
    "p2p",
    "memset",
    "uvm",
    "graph",
    "h2h",
    "mpi",
    "gate",
)
"""Class names; the position is the code stored in ``Operations.op_class``."""

CODE = {name: code for code, name in enumerate(CLASSES)}
"""Class name to code."""

ENGINE_CODES = tuple(range(CODE["h2h"]))
"""Classes that count in busy, span, serial, partition and bounds."""

HOST_CODES = (CODE["h2h"], CODE["mpi"])
"""Host-side classes: listed and paired, but no part of any device figure."""

KERNEL_CODES = tuple(CODE[name] for name in ("kernel", "comm", "fused", "gate"))
"""Classes of kernels."""

COPY_CLASSES = ("h2d", "d2h", "d2d", "p2p", "h2h")
"""The classes of copies."""

RULE_CLASSES = ("kernel", "comm", "fused", "gate")
"""The classes that a name rule may give."""


@dataclass(frozen=True, slots=True)
class ClassRule:
    """One rule: kernels whose base name matches `pattern` belong to class `op_class`."""

    op_class: str
    pattern: str
    source: str
    """Where the rule comes from: ``user``, ``gpuscope.toml`` or ``built in``."""

    def matches(self, base_name: str) -> bool:
        """Whether the whole of `base_name` matches, in any case."""
        return re.fullmatch(self.pattern, base_name, re.IGNORECASE) is not None


@cache
def built_in_rules() -> tuple[ClassRule, ...]:
    """Return the rules shipped with gpuscope, in order of precedence."""
    text = resources.files("gpuscope.model").joinpath("classes.toml").read_text("utf-8")
    return tuple(
        ClassRule(entry["class"], pattern, "built in")
        for entry in tomllib.loads(text)["rule"]
        for pattern in entry["patterns"]
    )


def user_rules(texts: str | Iterable[str], source: str = "user") -> tuple[ClassRule, ...]:
    """Parse rules of the form ``CLASS=REGEX``, as ``--class`` takes them; a text alone is one.

    Raises
    ------
    UsageError
        A text has no ``=``, an unknown class, or a pattern that is no regular expression.
    """
    rules = []
    for text in [texts] if isinstance(texts, str) else texts:
        name, equals, pattern = text.partition("=")
        if not equals or name not in RULE_CLASSES or not pattern:
            raise UsageError(
                f"{text!r} is no class rule: write CLASS=REGEX with a class of "
                f"{', '.join(RULE_CLASSES)}, such as comm=my_halo_.*"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            msg = (
                f"{pattern!r} is no regular expression ({error}): write a backslash before what "
                r"stands for itself, such as comm=halo\(.*"
            )
            raise UsageError(msg) from None
        rules.append(ClassRule(name, pattern, source))
    return tuple(rules)


def base_name(name: str) -> str:
    """Reduce a kernel's name to its base: no return type, namespace or template arguments.

    >>> base_name("void at::native::reduce_kernel<512, 1, Op<float> >(Op<float>)")
    'reduce_kernel'
    """
    depth = 0
    kept: list[str] = []
    for char in name.replace("(anonymous namespace)::", ""):
        if char == "<":
            depth += 1
        elif char == ">":
            depth = max(0, depth - 1)
        elif char == "(" and depth == 0 and kept:
            break
        elif depth == 0:
            kept.append(char)
    words = "".join(kept).split()
    return words[-1].rsplit("::", 1)[-1] if words else name


def rule_for(name: str, rules: Sequence[ClassRule]) -> ClassRule | None:
    """Return the first of `rules` that takes the kernel `name`, or None (a plain kernel)."""
    base = base_name(name)
    return next((rule for rule in rules if rule.matches(base)), None)
