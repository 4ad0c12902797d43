"""Tests that an edit changes only the edited part of a file. Style, order and comments of all other parts stay the
same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchyard_core.topology.document.edits import (
    add_replicas,
    set_name,
    set_pins,
    set_pools,
    set_program,
    set_strategy,
)
from torchyard_core.topology.document.yaml_patch import patch_yaml
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.model import Role, Topology

TEXT = """\
# What this is for.
version: 1
name: digits   # a short name
strategy: {kind: all_reduce}   # in step
pools:
  # The first of all.
  - {name: chief,   role: chief,  replicas: 1, gpus: 1}
  - {role: worker, name: workers, replicas: 4, gpus: 1, hosts: [gpu-a, gpu-b]}   # the others
  - name: eval
    role: evaluator   # beside
    replicas: 1  # one will do

# What runs.
program:
  script: train.py   # beside this file
  args: ["--epochs", '2']
  env: {OMP_NUM_THREADS: "1"}
"""


def read(text: str) -> Topology:
    found = topology_from_text(text)
    assert found.topology is not None, found.problems
    return found.topology


Edit = Callable[[Topology], Topology]

EDITS: list[tuple[Edit, str, str]] = [
    (lambda t: set_pools(t, [1], replicas=6), "replicas: 4", "replicas: 6"),
    (lambda t: set_pools(t, [0, 1], gpus=2), "gpus: 1", "gpus: 2"),
    (lambda t: set_pools(t, [1], hosts=["gpu-c"]), "[gpu-a, gpu-b]", "[gpu-c]"),
    (lambda t: set_pools(t, [1], cpus=2.5), "gpu-b]}", "gpu-b], cpus: 2.5}"),
    (lambda t: set_pools(t, [2], replicas=3), "replicas: 1  # one", "replicas: 3  # one"),
    (lambda t: set_pools(t, [2], gpus=1), "will do\n", "will do\n    gpus: 1\n"),
    (lambda t: set_program(t, script="other.py"), "script: train.py ", "script: other.py "),
    (lambda t: set_program(t, args=["-x", "a, b"]), """["--epochs", '2']""", "[-x, 'a, b']"),
    (lambda t: set_program(t, env={"OMP_NUM_THREADS": "2"}), '"1"}', "'2'}"),
    (lambda t: set_program(t, env={"OMP_NUM_THREADS": "1", "A": "b"}), '"1"}', '"1", A: b}'),
    (lambda t: set_strategy(t, kind="sandblaster"), "all_reduce}", "sandblaster}"),
    (lambda t: set_name(t, "other"), "name: digits ", "name: other "),
]


@pytest.mark.parametrize(("edit", "old", "new"), EDITS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_only_what_changes_is_written(edit: Edit, old: str, new: str, newline: str) -> None:
    text = TEXT.replace("\n", newline)
    before = read(text)
    assert patch_yaml(text, before, edit(before)) == TEXT.replace(old, new).replace("\n", newline)


def test_a_key_that_goes_takes_nothing_else_along() -> None:
    more = TEXT.replace("gpus: 1, hosts: [gpu-a, gpu-b]}", "cpus: 4, gpus: 1, hosts: [gpu-a, gpu-b]}")
    before = read(more)
    written = patch_yaml(more, before, set_pools(before, [1], cpus=None))
    assert written is not None
    assert read(written).pools[1].cpus is None
    assert "  - {role: worker, name: workers, replicas: 4, " in written
    assert "hosts: [gpu-a, gpu-b]" in written
    assert "# the others" in written


def test_a_new_pool_is_written_as_its_neighbours_are() -> None:
    flow = TEXT.replace("  - name: eval\n    role: evaluator   # beside\n    replicas: 1  # one will do\n", "")
    before = read(flow)
    grown, _ = add_replicas(before, Role.PS, 2)
    written = patch_yaml(flow, before, grown)
    assert written is not None
    assert "  - {name: servers, role: ps, replicas: 2" in written
    assert flow.splitlines()[7] in written.splitlines()


def test_pins_come_below_and_keep_their_style_from_then_on() -> None:
    before = read(TEXT)
    pinned = set_pins(before, {"worker-1": "gpu-a:1"})
    written = patch_yaml(TEXT, before, pinned)
    assert written == TEXT + "pins:\n  worker-1: gpu-a:1\n"
    flow = TEXT + 'pins: {worker-1: "gpu-a:1"}   # by hand\n'
    again = patch_yaml(flow, pinned, set_pins(pinned, {"worker-2": "gpu-a:2"}))
    assert again == TEXT + "pins: {worker-1: \"gpu-a:1\", worker-2: 'gpu-a:2'}   # by hand\n"


def test_aliases_and_folded_text_are_never_changed_wrongly() -> None:
    odd = TEXT.replace('{OMP_NUM_THREADS: "1"}', "&e {A: x}") + "layout: {notes: *e}\n"
    before = read(odd)
    after = set_program(before, env={"A": "y"})
    written = patch_yaml(odd, before, after)
    assert written is None or read(written) == after
