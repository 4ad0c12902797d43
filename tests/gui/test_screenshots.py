"""Tests that `make screenshots` takes a picture of each page, with a live run."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtGui import QImage
from pytestqt.qtbot import QtBot
from tools import screenshots


def test_a_live_run_is_drawn_light_and_dark(qtbot: QtBot, tmp_path: Path) -> None:
    options = ("--parts", "fleet,live", "--states", "one", "--sizes", "1280x800", "--scales", "1")
    assert screenshots.main([str(tmp_path), *options]) == 0
    names = sorted(path.stem for path in tmp_path.glob("*.png"))
    pages = ("fleet-one", "live-one", "live-one-log")
    pictures = (*pages, "dialog-one-add-workers")
    assert names == sorted(f"{picture}-{mode}-1280x800" for picture in pictures for mode in ("light", "dark"))
    for name in (each for each in names if each.startswith(pages)):
        picture = QImage(str(tmp_path / f"{name}.png"))
        assert (picture.width(), picture.height()) == (1280, 800)
        canvas = picture.pixelColor(500, 400).lightness()
        assert canvas > 200 if "light" in name else canvas < 60
    # The pictures with and without the log must differ, so the run must be running and have log lines.
    assert QImage(str(tmp_path / "live-one-light-1280x800.png")) != QImage(
        str(tmp_path / "live-one-log-light-1280x800.png")
    )


def test_at_a_scale_of_two_pictures_have_twice_the_pixels(tmp_path: Path) -> None:
    assert (
        screenshots.main(
            [str(tmp_path), "--parts", "fleet", "--states", "empty", "--sizes", "1024x700", "--scales", "2"]
        )
        == 0
    )
    picture = QImage(str(tmp_path / "fleet-empty-dark-1024x700@2.png"))
    assert (picture.width(), picture.height()) == (2048, 1400)
