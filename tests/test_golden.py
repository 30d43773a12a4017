"""The whole analysis of every shipped trace, byte for byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuscope import api, samples
from gpuscope.model import codec


@pytest.mark.parametrize("name", samples.names())
def test_the_analysis_is_as_it_was(name: str, golden: Callable[[str, str], None]) -> None:
    path = samples.path(name)
    text = codec.dumps(api.analyze([path])[0])
    golden(f"analysis/{name}.json", text.replace(str(path), path.name))
