"""Results as JSON: dataclasses to plain objects, the same bytes for the same result."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

_OPTIONAL_KEYS = ("per_instance",)


def to_jsonable(value: Any) -> Any:
    """Turn a result into dicts, lists and numbers, a key a field.

    ``schema_version`` comes first; ``per_instance`` is left out where it was not asked for.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        names.sort(key=lambda name: name != "schema_version")
        return {
            name: to_jsonable(getattr(value, name))
            for name in names
            if not (name in _OPTIONAL_KEYS and getattr(value, name) is None)
        }
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_jsonable(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Return the JSON text of a result: two-space indented, UTF-8, ends with a newline."""
    return json.dumps(to_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
