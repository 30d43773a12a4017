"""The settings of a project: class rules in ``gpuscope.toml`` of the folder one works in.

::

    [classes]
    comm = ["halo_.*", "my_all_reduce"]
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from gpuscope.errors import UsageError
from gpuscope.model.classes import ClassRule, user_rules

FILE = "gpuscope.toml"


def class_rules(folder: Path | None = None) -> tuple[ClassRule, ...]:
    """Return the class rules of the settings in `folder` (the current one); none without a file.

    Raises
    ------
    UsageError
        The file is no TOML, or holds something else than rules.
    """
    file = (folder or Path()) / FILE
    try:
        found = tomllib.loads(file.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from None
    strange = set(found) - {"classes"}
    classes = found.get("classes", {})
    lists = classes.values() if isinstance(classes, dict) else [None]
    if strange or not all(
        isinstance(patterns, list) and all(isinstance(text, str) for text in patterns)
        for patterns in lists
    ):
        raise UsageError(
            f"{file} holds {min(strange) if strange else 'classes'!r} in a form that is not known: "
            'write [classes] and under it lists of patterns, such as comm = ["halo_.*"].'
        )
    texts = [f"{name}={pattern}" for name, patterns in classes.items() for pattern in patterns]
    try:
        return user_rules(texts, source=FILE)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None
