"""Tests that text has enough contrast, and that the light and the dark theme have the same tokens."""

from __future__ import annotations

import re

import pytest
from PySide6.QtCore import QRectF
from PySide6.QtGui import QImage, QPainter
from pytestqt.qtbot import QtBot

from torchyard_gui.bridge.host_status import GpuNow
from torchyard_gui.fleet.host_card import paint_gpu_cells
from torchyard_gui.theme.stylesheet import stylesheet
from torchyard_gui.theme.svg_files import write_stylesheet_svgs
from torchyard_gui.theme.theme import theme
from torchyard_gui.theme.tokens import DARK, LIGHT, METRICS, Tokens

both = pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
COLORS = [name for name in Tokens._fields if name != "dark"]


@both
def test_every_colour_is_written_as_six_hexadecimal_digits(tokens: Tokens) -> None:
    for name in COLORS:
        assert re.fullmatch("#[0-9A-F]{6}", getattr(tokens, name)), name


@both
@pytest.mark.parametrize("ink", ["text", "text2", "text3", "accent", "run", "wait", "fail", "unknown", "done"])
@pytest.mark.parametrize("surface", ["s1", "s2"])
def test_ink_on_surfaces_has_at_least_four_and_a_half_to_one(tokens: Tokens, ink: str, surface: str) -> None:
    assert contrast(getattr(tokens, ink), getattr(tokens, surface)) >= 4.5


@both
@pytest.mark.parametrize(
    ("ink", "surface"),
    [("on_accent", "accent"), ("text", "accent_soft"), ("text", "wait_soft"), ("text", "fail_soft")],
)
def test_words_on_coloured_surfaces_can_be_read(tokens: Tokens, ink: str, surface: str) -> None:
    assert contrast(getattr(tokens, ink), getattr(tokens, surface)) >= 4.5


@both
@pytest.mark.parametrize("role", ["worker", "ps", "chief", "reducer", "evaluator"])
def test_a_badges_letter_stands_out_from_its_shape(tokens: Tokens, role: str) -> None:
    assert contrast(tokens.on_role, getattr(tokens, role)) >= 3


@both
def test_the_cell_of_a_free_gpu_stands_out_from_its_card(tokens: Tokens, qtbot: QtBot) -> None:
    theme().set_mode("dark" if tokens is DARK else "light")
    image = QImage(20, 14, QImage.Format.Format_RGB32)
    image.fill(tokens.s2)
    painter = QPainter(image)
    paint_gpu_cells(painter, QRectF(0, 0, 20, 14), [GpuNow(0, "H100", 81559, utilisation=0.0, users=())])
    painter.end()
    assert contrast(image.pixelColor(0, 7).name(), tokens.s2) >= 1.6


@both
def test_the_stylesheet_is_made_of_tokens_only(tokens: Tokens) -> None:
    sheet = stylesheet(tokens, METRICS, write_stylesheet_svgs(tokens))
    used = set(re.findall("#[0-9A-Fa-f]{3,8}\\b", sheet))
    assert used <= {getattr(tokens, name) for name in COLORS}


def contrast(one: str, other: str) -> float:
    """Returns the contrast ratio of two colours as defined by WCAG 2."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
