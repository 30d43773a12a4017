"""Colours, and the pictures of overlap, from traces written by hand."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from gpuscope import api
from gpuscope.analyzers import overlap
from gpuscope.figures import palette
from gpuscope.figures.overlap import Together, matrix_figure
from gpuscope.figures.timeline import PAINTS
from gpuscope.model.classes import CLASSES
from tests.make_trace import make_trace

MS = 1_000_000


@pytest.mark.parametrize("theme", [palette.LIGHT, palette.DARK], ids=lambda theme: theme.name)
def test_bars_and_texts_stand_out(theme: palette.Theme) -> None:
    for name in CLASSES:
        color = theme.color(name)
        assert palette.contrast(color, theme.surface) >= 3, name
        assert palette.contrast(theme.ink_on(name), color) >= 4.5, name
    assert palette.contrast(theme.text, theme.surface) >= 7
    assert palette.contrast(theme.muted, theme.surface) >= 4.5
    for name in PAINTS[len(CLASSES) :]:  # what lies behind has its names in the colour of text
        assert palette.contrast(theme.text, theme.color(name)) >= 4.5, name


def test_contrast_is_that_of_wcag() -> None:
    assert palette.contrast("#ffffff", "#000000") == pytest.approx(21)
    assert palette.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


# Machado, Oliveira, Fernandes 2009: what people with each kind of colour blindness see of linear
# red, green and blue.
SIGHT = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def seen(color: str, sight: str) -> npt.NDArray[np.float64]:
    """Return a colour in CIE Lab as it is seen."""
    srgb = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    ) @ np.clip(np.array(SIGHT[sight]) @ linear, 0, 1)
    scaled = xyz / [0.9505, 1, 1.089]
    f = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", [palette.LIGHT, palette.DARK], ids=lambda theme: theme.name)
@pytest.mark.parametrize("sight", list(SIGHT))
def test_classes_side_by_side_stay_apart(theme: palette.Theme, sight: str) -> None:
    common = ("kernel", "comm", "h2d", "d2h", "d2d", "p2p", "memset")
    colors = {name: seen(theme.color(name), sight) for name in common}
    for a, b in itertools.combinations(common, 2):
        assert np.linalg.norm(colors[a] - colors[b]) > 15, (a, b)


def test_every_class_has_a_colour_of_its_own() -> None:
    for theme in (palette.LIGHT, palette.DARK):
        colors = [theme.color(name) for name in CLASSES]
        assert len(set(colors)) == len(CLASSES)
    assert palette.theme("dark") is palette.DARK
    assert palette.theme("light") is palette.LIGHT


def test_one_class_has_no_matrix() -> None:
    trace = make_trace(kernels=[(0, 10 * MS, "s7")])
    (device,) = api.analyze_trace(trace, analyzers=(overlap.ANALYZER,)).devices
    assert not matrix_figure(Together.of_scope(device.scope), palette.LIGHT).data


def test_the_matrix_says_the_scope_s_figures() -> None:
    trace = make_trace(kernels=[(0, 10 * MS, "s7")], h2d=[(5 * MS, 15 * MS, "s8")])
    (device,) = api.analyze_trace(trace, analyzers=(overlap.ANALYZER,)).devices
    matrix = matrix_figure(Together.of_scope(device.scope), palette.LIGHT)
    (heat,) = matrix.data
    assert list(heat.x) == ["kernel", "h2d"]
    assert [list(row) for row in heat.z] == [[None, 0.5], [0.5, None]]
    assert "50.0 %" in heat.text[0][1]
    assert "5.00 ms" in heat.text[0][1]
