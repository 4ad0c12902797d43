"""Tests that the roles on a tile differ not only by colour, but also by badges or filled parts."""

from __future__ import annotations

from itertools import combinations

import pytest
from PySide6.QtCore import QRect
from PySide6.QtGui import QColor, QImage, QPainter

from tests.gui.canvas.samples import host, pool, topology
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.topology.model import Role
from torchyard_gui.canvas.racks.rack_content import racks_of
from torchyard_gui.canvas.racks.tile_painting import cells, paint_tile

SCALE = 4
"""The scale of the picture, at which single strokes are several pixels wide."""
SAMPLES = [(x, y) for x in range(16) for y in range(16)]


@pytest.mark.parametrize("zoom", [0.32, 0.2, 0.14])
def test_roles_are_told_apart_without_colour(qapp: object, zoom: float) -> None:
    pools = [
        pool(role.value, role, 1 if role is Role.CHIEF else 2, int(role.trains or role is Role.EVALUATOR))
        for role in Role
    ]
    hosts = [host("gpu-a", 8)]
    (rack,) = racks_of(plan(topology(*pools), hosts), hosts)
    ratio = SCALE * zoom
    image = QImage(round(rack.layout.width * ratio), round(rack.layout.height * ratio), QImage.Format.Format_RGB32)
    image.fill(QColor("white"))
    painter = QPainter(image)
    painter.scale(ratio, ratio)
    paint_tile(painter, rack, None, None, frozenset(), zoom)
    painter.end()
    roles = {chip.name: chip.role for chip in rack.chips}
    dark: dict[str, list[bool]] = {}
    for name, box in cells(rack, zoom):
        if name:
            part = image.copy(QRect(*(round(length * ratio) for length in box))).scaled(16, 16)
            shades = [part.pixelColor(x, y).lightness() for x, y in SAMPLES]
            middle = (max(shades) + min(shades)) / 2
            dark[roles[name]] = [shade <= middle for shade in shades]
    assert len(dark) == len(Role)
    for one, other in combinations(dark, 2):
        differs = sum(a != b for a, b in zip(dark[one], dark[other], strict=True))
        assert differs > 12, f"{one} and {other} look alike"
