"""Results as JSON: dataclasses to plain objects, the same bytes for the same result."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_UNPRINTABLE = re.compile(r"[\x7f-\xa0\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""What JSON allows in a text as it is though a terminal may obey it."""
_OPTIONAL_KEYS = ("per_instance", "per_message", "apart", "held")


def to_jsonable(value: Any) -> Any:
    """Turn a result into dicts, lists and numbers, a key a field.

    ``schema_version`` comes first; ``per_instance`` and other optional ones are left out where
    they are None.
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


def from_jsonable(kind: type[_T], data: Any) -> _T:
    """Turn what :func:`to_jsonable` made of a dataclass back into one of the type `kind`.

    Raises
    ------
    KeyError, TypeError, ValueError
        The data are of another shape.
    """
    return kind(**fields_from_jsonable(kind, data))


def fields_from_jsonable(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the dataclass `kind` that `data` holds, each of its type."""
    return {name: _value(hint, data[name]) for name, hint in _hints(kind).items() if name in data}


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _value(hint: Any, data: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if data is None:
            return None
        kinds = [argument for argument in arguments if argument is not type(None)]
        return _value(kinds[0], data) if len(kinds) == 1 else data
    if dataclasses.is_dataclass(hint):
        return from_jsonable(hint, data)  # type: ignore[arg-type] # a type, not an instance
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is ...:
            return tuple(_value(arguments[0], item) for item in data)
        return tuple(_value(part, item) for part, item in zip(arguments, data, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {key: _value(arguments[1], item) for key, item in data.items()}
    return data


def dumps(value: Any) -> str:
    """Return the JSON text of a result: two-space indented, UTF-8, ends with a newline.

    What is no printable character is escaped.
    """
    text = json.dumps(to_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False)
    text = _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    # The name of a file need not be UTF-8: Python holds such bytes as lone surrogates.
    return text.encode("utf-8", "replace").decode("utf-8") + "\n"
