"""Tests that large files and folders require a confirmation before they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard_core.errors import RunFailed
from torchyard_core.launch.confirmations import Confirmation, confirm_size, no_answer, settle
from torchyard_core.next_steps import advice_text

FOLDER = Path("/work/digits")
MB, GB = 10**6, 10**9


def test_an_ordinary_folder_raises_no_question() -> None:
    assert confirm_size(FOLDER, {"a.py": 100, "model.bin": 100 * MB}, 3) is None
    assert confirm_size(FOLDER, {f"{number}.npy": 90 * MB for number in range(22)}, 3) is None


def test_large_files_are_named_the_biggest_first() -> None:
    new = {"a.py": 100, "data/train.bin": 3100 * MB, "data/test.bin": 120 * MB}

    asked = confirm_size(FOLDER, new, 3)

    assert asked is not None
    assert asked.message == (
        "the working folder /work/digits holds 2 files over 100 MB: data/train.bin (3.1 GB), data/test.bin (120 MB); "
        "3.2 GB in all."
    )
    assert asked.question == "Send it to 3 hosts?"
    assert "exclude" in advice_text(asked.advice)


def test_many_small_files_that_add_up_are_asked_about() -> None:
    asked = confirm_size(FOLDER, {f"{number:03}.npy": 50 * MB for number in range(41)}, 1)

    assert asked is not None
    assert "holds 2.0 GB in 41 files; the biggest are 000.npy (50 MB), 001.npy" in asked.message
    assert asked.question == "Send it to 1 host?"


def test_of_many_large_files_some_are_named_and_the_rest_counted() -> None:
    asked = confirm_size(FOLDER, {f"{number}.bin": 200 * MB for number in range(8)}, 1)

    assert asked is not None
    assert "holds 8 files over 100 MB: 0.bin (200 MB)" in asked.message
    assert asked.message.endswith("4.bin (200 MB) and 3 more.")


def test_yes_goes_on_and_no_stops_with_a_way_out() -> None:
    asked = confirm_size(FOLDER, {"big": GB}, 1)
    answers: list[Confirmation] = []

    settle(None, no_answer)
    settle(asked, lambda question: answers.append(question) or True)
    for no in (no_answer, lambda question: False):
        with pytest.raises(RunFailed, match="a file over 100 MB: big") as refused:
            settle(asked, no)
        assert refused.value.code == "large_files"
        assert "exclude" in refused.value.hint
        assert "-y" in refused.value.hint
    assert answers == [asked]
