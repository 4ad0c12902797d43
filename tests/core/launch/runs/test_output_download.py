"""Tests of downloading a run's files: each file is downloaded once, and a checkpoint completely or not at all."""

from __future__ import annotations

import base64
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from torchyard_core.errors import AgentRefused, HostError, Unreachable
from torchyard_core.launch.runs.output_download import fetch_files, list_files, without_copies

ONE, TWO = "outputs/checkpoints/step-000000000001", "outputs/checkpoints/step-000000000002"


class Holder:
    """A link to a host whose files are in a dictionary."""

    def __init__(self, host: str, files: dict[str, bytes] | Exception):
        self.host = host
        self.files = files
        self.vanish: set[str] = set()
        """Files that are listed but removed before they are read."""

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        if isinstance(self.files, Exception):
            future.set_exception(self.files)
        else:
            future.set_result([{"path": path, "size": len(data)} for path, data in self.files.items()])
        return future

    def call(self, method: str, params: dict[str, Any], timeout_s: float = 60.0) -> Any:
        assert isinstance(self.files, dict)
        if params["path"] in self.vanish:
            raise AgentRefused(self.host, "no file any more", code="no_file")
        data = self.files[params["path"]]
        piece = data[params["offset"] : params["offset"] + 4]
        return {"data": base64.b64encode(piece).decode(), "next": params["offset"] + len(piece), "size": len(data)}


def listed(*paths: str) -> list[dict[str, Any]]:
    return [{"path": path, "size": 1} for path in paths]


def test_a_checkpoint_comes_from_the_first_host_that_has_it_and_all_else_from_everywhere() -> None:
    found = {
        "gpu-a": listed(f"{TWO}/model.pt", f"{TWO}/checkpoint.json", "logs/chief-0.log"),
        "gpu-b": listed(f"{ONE}/model.pt", f"{TWO}/model.pt", "outputs/model.bin", "outputs/checkpoints/parts/w/x.pt"),
        "gpu-c": listed(f"{ONE}/model.pt", "outputs/model.bin"),
    }

    left = {host: [file["path"] for file in files] for host, files in without_copies(found).items()}

    assert left == {
        "gpu-a": [f"{TWO}/model.pt", f"{TWO}/checkpoint.json", "logs/chief-0.log"],
        "gpu-b": [f"{ONE}/model.pt", "outputs/model.bin", "outputs/checkpoints/parts/w/x.pt"],
        "gpu-c": ["outputs/model.bin"],
    }


def test_hosts_that_know_nothing_of_the_run_are_left_out_and_errors_of_others_are_returned() -> None:
    gone, silent = AgentRefused("gpu-b", "no run", code="no_run"), Unreachable("gpu-c", "gpu-c does not answer.")
    links = {
        "gpu-c": Holder("gpu-c", silent),
        "gpu-b": Holder("gpu-b", gone),
        "gpu-a": Holder("gpu-a", {"logs/x": b"1"}),
    }

    files, problems = list_files("run", "", ["gpu-a", "gpu-b", "gpu-c", "gpu-d"], links)

    assert (files, problems) == ({"gpu-a": listed("logs/x")}, {"gpu-c": silent})


def test_a_checkpoint_that_the_chief_clears_away_meanwhile_is_left_out_whole(tmp_path: Path) -> None:
    files = {
        f"{ONE}/a.pt": b"aaaaaaaa",
        f"{ONE}/b.pt": b"bb",
        f"{ONE}/c.pt": b"c",
        f"{TWO}/a.pt": b"new",
        "logs/x": b"hi",
    }
    holder = Holder("gpu-a", files)
    holder.vanish = {f"{ONE}/b.pt"}

    written = fetch_files(
        "run", list_files("run", "", ["gpu-a"], {"gpu-a": holder})[0]["gpu-a"], tmp_path, holder, _mute
    )

    assert [path.relative_to(tmp_path).as_posix() for path in written] == [f"gpu-a/{TWO}/a.pt", "gpu-a/logs/x"]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["a.pt", "x"]
    assert (tmp_path / "gpu-a" / TWO / "a.pt").read_bytes() == b"new"


def test_a_file_that_is_offered_from_outside_is_refused(tmp_path: Path) -> None:
    holder = Holder("gpu-a", {"../../evil": b"x"})
    with pytest.raises(HostError, match="outside the run's folder"):
        fetch_files("run", listed("../../evil"), tmp_path, holder, _mute)


def _mute(host: str, done: int, total: int) -> None:
    pass


class Endless(Holder):
    """A host that announces a few bytes, but sends an endless stream."""

    asked = 0

    def call(self, method: str, params: dict[str, Any], timeout_s: float = 60.0) -> Any:
        self.asked += 1
        assert self.asked < 100
        return {"data": base64.b64encode(b"x" * 4).decode(), "next": 0, "size": 1 << 60}


def test_a_file_ends_at_the_announced_size(tmp_path: Path) -> None:
    files = [{"path": "outputs/model.pt", "size": 10}, {"path": "outputs/empty", "size": 0}]
    link = Endless("gpu-a", {})
    written = fetch_files("r", files, tmp_path, link, lambda *_: None)
    assert [path.read_bytes() for path in written] == [b"x" * 10, b""]
    assert link.asked == 3


@pytest.mark.parametrize("answer", [None, {}, {"data": 7}, {"data": "*"}])
def test_a_piece_that_is_none_is_an_error_of_the_host(tmp_path: Path, answer: Any) -> None:
    link = Holder("gpu-a", {})
    link.call = lambda *_, **__: answer  # type: ignore[method-assign]  # The test replaces this method.
    with pytest.raises(HostError, match="gpu-a sent malformed data of"):
        fetch_files("r", [{"path": "outputs/model.pt", "size": 1}], tmp_path, link, lambda *_: None)  # type: ignore[arg-type]  # The link is a fake.
    assert list((tmp_path / "gpu-a" / "outputs").iterdir()) == []


def test_names_that_would_act_on_a_terminal_are_written_with_escapes(tmp_path: Path) -> None:
    names = {"a\0b": "a%00b", "\x1b]0;title\x07": "%1b]0;title%07", "two\nlines": "two%0alines", "\ud800": "%ed%a0%80"}
    link = Holder("gpu-a", {f"outputs/{name}": b"1" for name in names})
    files = [{"path": f"outputs/{name}", "size": 1} for name in names]
    written = fetch_files("r", files, tmp_path, link, lambda *_: None)  # type: ignore[arg-type]  # The link is a fake.
    assert [path.name for path in written] == list(names.values())
    assert {path.name for path in (tmp_path / "gpu-a" / "outputs").iterdir()} == set(names.values())


@pytest.mark.parametrize(
    "answer", [None, 7, [7], [{"path": "x"}], [{"path": "x", "size": "a"}], [{"path": "x", "size": -1}]]
)
def test_a_list_that_is_none_is_an_error_of_its_host_alone(answer: Any) -> None:
    bad, good = Holder("gpu-a", {}), Holder("gpu-b", {"logs/x": b"1"})
    future: Future[Any] = Future()
    future.set_result(answer)
    bad.submit = lambda *_: future  # type: ignore[method-assign]  # The test replaces this method.
    files, problems = list_files("r", "", ["gpu-a", "gpu-b"], {"gpu-a": bad, "gpu-b": good})  # type: ignore[dict-item]  # The links are fakes.
    assert list(files) == ["gpu-b"]
    assert "gpu-a sent a malformed list of the run's files" in str(problems["gpu-a"])
