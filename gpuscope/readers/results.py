"""Answers to questions about large exports, kept in the cache folder as JSON."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from gpuscope.model import codec
from gpuscope.model.result import Analysis
from gpuscope.readers import cache, columns
from gpuscope.readers.database import needs_copy


class Kept:
    """The place of one answer, to be looked for before the exports are read.

    Parameters
    ----------
    exports
        The SQLite exports asked about.
    question
        Everything else that the answer depends on, but gpuscope's own code.
    """

    def __init__(self, exports: Sequence[Path], question: str) -> None:
        self._exports, self._question = exports, question
        self._identities: list[cache.Identity] | None = None
        with contextlib.suppress(OSError):
            large = any(columns.worth_keeping(export) for export in exports)
            if large and not any(map(needs_copy, exports)):
                self._identities = [cache.identity_of(export) for export in exports]

    def load(self) -> tuple[Analysis, ...] | None:
        """Return the answer as it was kept; None where it was not."""
        try:
            path = self._path()
            if path is None:
                return None
            data = json.loads(path.read_text("utf-8"))
            found = tuple(codec.from_jsonable(Analysis, each) for each in data)
            cache.use(path)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found

    def keep(self, answer: Sequence[Analysis]) -> None:
        """Keep the answer, unless an export changed meanwhile."""
        columns.finish()  # which knows the digests then
        with contextlib.suppress(OSError):
            path = self._path()
            if path is not None:
                text = json.dumps(codec.to_jsonable(tuple(answer)))
                cache.save(path, lambda target: target.write_text(text, "utf-8"))

    def _path(self) -> Path | None:
        if self._identities is None:
            return None
        digests = []
        for export, identity in zip(self._exports, self._identities, strict=True):
            if cache.identity_of(export) != identity:
                return None
            large = columns.worth_keeping(export)
            digests.append(cache.known_digest(export) if large else cache.digest_of(export))
        if None in digests:
            return None
        text = f"{columns.code_fingerprint()} {digests} {self._question}"
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
        return cache.base_folder() / "results" / f"{key}.json"
