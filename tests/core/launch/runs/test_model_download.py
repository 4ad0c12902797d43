"""Tests of downloading a run's model: which checkpoint is chosen, and that the file is either complete or absent."""

from __future__ import annotations

import base64
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from torchyard_core.errors import AgentRefused, HostError, RunFailed, TorchyardError, Unreachable, UsageError
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.launch.runs.model_download import (
    ModelSource,
    SavedModel,
    fetch_model,
    find_model,
    model_sources,
    require_absent,
    target_of,
)
from torchyard_core.next_steps import SetField

RUN = KnownRun("r", "digits", "succeeded", "", "", "gpu-b", ("gpu-a", "gpu-b"), is_fresh=True)
SOURCE = ModelSource(None, None)
TOPOLOGY = """\
version: 1
name: digits
pools: [{name: workers, role: worker, replicas: 2}]
program: {script: train.py, checkpoint_dir: /shared/, setup: [module load cuda], env: {A: "1"}}
"""


def saved(step: int, *, sharded: bool = False, missing: str = "", parts: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"step": step, "sharded": sharded, "bytes": 10, "missing": missing, "parts": list(parts)}


class Holder:
    """A link to a host with checkpoints and a model."""

    def __init__(self, host: str, *checkpoints: dict[str, Any], error: Exception | None = None, data: bytes = b"model"):
        self.host, self.checkpoints, self.error, self.data = host, checkpoints, error, data
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.waits = 2
        """The number of requests that are answered before the model file is complete."""
        self.announced = len(data)
        self.record: dict[str, Any] = {}

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self.call(method, params))
        except Exception as error:
            future.set_exception(error)
        return future

    def call(self, method: str, params: dict[str, Any], timeout_s: float = 60.0) -> Any:
        self.asked.append((method, params))
        if self.error is not None:
            raise self.error
        if method == "checkpoints.list":
            return {"folder": "", "checkpoints": list(self.checkpoints)}
        if method == "model.export":
            self.waits -= 1
            return {"path": None, "size": 0} if self.waits >= 0 else {"path": "exports/x", "size": self.announced}
        if method == "files.read":
            piece = self.data[params["offset"] : params["offset"] + 2]
            return {"data": base64.b64encode(piece).decode()}
        return {"record": self.record}


def found(*hosts: Holder, step: int | None = None) -> SavedModel:
    links: Any = {host.host: host for host in hosts}
    return find_model(RUN, dict.fromkeys(links, SOURCE), links, step)


def test_the_newest_complete_checkpoint_is_taken_from_the_primary_if_it_has_it() -> None:
    a, b = Holder("gpu-a", saved(3), saved(5)), Holder("gpu-b", saved(3), saved(5))
    assert found(a, b) == SavedModel("gpu-b", 5, False, 10)
    assert found(a, Holder("gpu-b", saved(3))) == SavedModel("gpu-a", 5, False, 10)
    assert found(a, b, step=3) == SavedModel("gpu-b", 3, False, 10)


def test_an_incomplete_checkpoint_is_passed_over_with_what_is_missing_where() -> None:
    a = Holder("gpu-a", saved(8, parts=("__1_0.distcp",)), saved(5, sharded=True))
    b = Holder("gpu-b", saved(8, missing="__1_0.distcp"))
    model = found(a, b)
    assert (model.host, model.step, model.is_sharded) == ("gpu-a", 5, True)
    sentence = "The checkpoint of step 8 is incomplete: __1_0.distcp is missing on gpu-b; gpu-a has only __1_0.distcp."
    assert model.newer_incomplete == sentence
    with pytest.raises(RunFailed, match="run r has no complete checkpoint of step 8") as caught:
        found(a, b, step=8)
    assert sentence in caught.value.message
    assert SetField("program.checkpoint_dir") in caught.value.next


def test_hosts_without_a_shared_folder_have_no_complete_checkpoint() -> None:
    with pytest.raises(RunFailed) as caught:
        found(Holder("gpu-a", saved(4, parts=("__1_0.distcp",))), Holder("gpu-b"))
    assert caught.value.message == (
        "run r has no complete checkpoint. The checkpoint of step 4 is incomplete: gpu-b has no part of it; "
        "gpu-a has only __1_0.distcp."
    )


def test_a_missing_checkpoint_names_the_hosts_and_the_steps_that_exist() -> None:
    with pytest.raises(RunFailed, match="run r has no checkpoint on gpu-b and gpu-a"):
        found(Holder("gpu-a"), Holder("gpu-b"))
    with pytest.raises(RunFailed, match="no checkpoint of step 7 on gpu-a") as caught:
        found(Holder("gpu-a", saved(3), saved(5)), step=7)
    assert "There are those of steps 3, 5." in caught.value.sentence()


def test_a_host_that_fails_is_reported_only_if_no_other_has_a_checkpoint() -> None:
    silent = Holder("gpu-b", error=Unreachable("gpu-b", "gpu-b does not answer."))
    forgotten = Holder("gpu-b", error=AgentRefused("gpu-b", "no run", code="no_run"))
    assert found(Holder("gpu-a", saved(3)), silent).host == "gpu-a"
    with pytest.raises(Unreachable):
        found(Holder("gpu-a"), silent)
    with pytest.raises(RunFailed, match="no checkpoint on gpu-a"):
        found(Holder("gpu-a"), forgotten)


def test_the_file_is_complete_and_the_hosts_copy_is_removed(tmp_path: Path) -> None:
    link: Any = Holder("gpu-a")
    seen: list[tuple[str, int, int]] = []
    source = ModelSource("/shared/r", "python3", ("module load cuda",), {"A": "1"})
    model = SavedModel("gpu-a", 5, True, 10)
    file = tmp_path / "new" / "model.pt"
    assert fetch_model("r", model, source, file, link, lambda *now: seen.append(now)) == 5
    assert file.read_bytes() == b"model"
    assert seen == [("gpu-a", 2, 5), ("gpu-a", 4, 5), ("gpu-a", 5, 5)]
    exports = [params for method, params in link.asked if method == "model.export"]
    assert len(exports) == 3
    assert all(each == exports[0] for each in exports)
    more = {"folder": "/shared/r", "python": "python3", "setup": ["module load cuda"], "env": {"A": "1"}}
    assert exports[0] == {"run_id": "r", "step": 5, "export": exports[0]["export"], **more}
    assert link.asked[-1] == ("model.remove", {"run_id": "r", "export": exports[0]["export"]})


def test_a_download_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    link: Any = Holder("gpu-a")
    link.announced = 9
    (tmp_path / "model.pt").write_bytes(b"old")
    with pytest.raises(HostError, match="gpu-a sent 5 of 9 bytes of the model"):
        fetch_model("r", SavedModel("gpu-a", 5, False, 9), SOURCE, tmp_path / "model.pt", link, lambda *_: None)
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    assert (tmp_path / "model.pt").read_bytes() == b"old"
    assert link.asked[-1][0] == "model.remove"


def test_the_file_is_named_after_the_run_unless_it_is_named(tmp_path: Path) -> None:
    assert target_of(None, "r") == Path("r.pt")
    assert target_of(tmp_path, "r") == tmp_path / "r.pt"
    assert target_of(tmp_path / "a.pt", "r") == tmp_path / "a.pt"
    require_absent(tmp_path / "a.pt")
    (tmp_path / "a.pt").touch()
    with pytest.raises(UsageError, match="exists already") as caught:
        require_absent(tmp_path / "a.pt")
    assert "--force" in caught.value.sentence()


def test_the_own_record_says_what_was_run_and_else_each_host_for_itself() -> None:
    own = RunRecord("r", "digits", "", "gpu-a", ("gpu-a", "gpu-b"), "", "succeeded", topology=TOPOLOGY)
    a, b = Holder("gpu-a"), Holder("gpu-b", error=Unreachable("gpu-b", "gpu-b does not answer."))
    links: Any = {"gpu-a": a, "gpu-b": b}
    pythons = {"gpu-a": None, "gpu-b": "/opt/python"}
    expected = ModelSource("/shared/digits-r", None, ("module load cuda",), {"A": "1"})
    sources = model_sources(RUN, own, links, pythons)
    assert sources == {"gpu-a": expected, "gpu-b": ModelSource("/shared/digits-r", "/opt/python", *_rest(expected))}
    a.record = {"name": "other", "record": {"topology": TOPOLOGY, "lineage": "first"}}
    foreign = model_sources(RUN, None, links, pythons)
    unknown = ModelSource(None, "/opt/python")
    assert foreign == {"gpu-a": ModelSource("/shared/other-first", None, *_rest(expected)), "gpu-b": unknown}


def test_a_host_that_does_not_answer_is_named_for_a_run_of_another_desktop() -> None:
    links: Any = {"gpu-a": Holder("gpu-a", error=Unreachable("gpu-a", "gpu-a does not answer."))}
    with pytest.raises(TorchyardError, match="gpu-a does not answer"):
        find_model(RUN, model_sources(RUN, None, links, {"gpu-a": None}), links)


def _rest(source: ModelSource) -> tuple[Any, Any]:
    return source.setup, source.env
