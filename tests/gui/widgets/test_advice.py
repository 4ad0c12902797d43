"""Messages of the core with commands are shown in terms of the window."""

from __future__ import annotations

import pytest

from torchyard_gui.widgets.advice import as_sentence, in_the_window


@pytest.mark.parametrize(
    ("core", "window"),
    [
        ("Run `torchyard deploy gpu-a`.", "Press “Deploy”."),
        (
            "Compare it with the host's own, then run `torchyard hosts trust gpu-a`.",
            "Compare it with the host's own, then press “Trust …”.",
        ),
        (
            "Choose another name, or `torchyard hosts remove gpu-a` first.",
            "Choose another name, or remove that one first.",
        ),
        (
            "Delete what is not needed there (`torchyard runs list` shows old runs), or set `agent_dir` elsewhere.",
            "Delete what is not needed there (the Runs page shows old runs), or set “agent_dir” elsewhere.",
        ),
        ("`torchyard validate a/b.yaml` lists them all.", "Problems on the Topology page lists them all."),
        ("gpu-b was never checked; see `torchyard hosts check`", "gpu-b was never checked; see the Fleet page"),
        ("no hosts; add one with `torchyard hosts add`", "no hosts; add one on the Fleet page"),
        ("an image with the program: `--image` names it.", "an image with the program: name it in the field Image."),
        (
            'Free nearby: gpu-b:2 from Mon 23 Nov 17:00 to 23:00. `torchyard run a --at "2026-11-23 17:00" --book 6h` '
            "books that and starts then.",
            "Free nearby: gpu-b:2 from Mon 23 Nov 17:00 to 23:00.",
        ),
        (
            "Add --book 8h (or another length) to book them with the launch, or book them first: `torchyard book`.",
            "The booking ends with the run. For another length, press “When” first.",
        ),
        (
            "Name what a run does not need in `program.exclude` or .gitignore, or add -y to send it all.",
            "Name what a run does not need in the field Not sent or .gitignore.",
        ),
        ("Is sshd running there?", "Is sshd running there?"),
    ],
)
def test_the_command_lines_advice_becomes_the_windows(core: str, window: str) -> None:
    assert in_the_window(core) == window


def test_a_button_of_another_page_is_told_with_its_page() -> None:
    core = "Compare it with the host's own, then run `torchyard hosts trust gpu-a`. Run `torchyard deploy gpu-a`."
    assert in_the_window(core, elsewhere=True) == (
        "Compare it with the host's own, then press “Trust …” on the Fleet page. On the Fleet page, press “Deploy”."
    )


def test_a_sentence_has_a_capital_and_a_stop_and_names_stay_as_they_are() -> None:
    assert as_sentence("the disk of gpu-a is full", "Make room.") == "The disk of gpu-a is full. Make room."
    assert as_sentence("gpu-a refused the login.") == "gpu-a refused the login."
    assert as_sentence("torch is not installed for /usr/bin/python3.").startswith("torch is")
    assert as_sentence("the did not answer.", host="the") == "the did not answer."
