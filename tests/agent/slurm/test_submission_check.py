"""Tests of the test of a request before its submission, with stand-ins for Slurm's commands."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.slurm import submission_check

HOUR = 3600
SBATCH = """\
#!/bin/sh
echo "$*" >> {folder}/calls
begin=$(sed -n 's/^#SBATCH --begin=now+//p' "$2" | head -1)
minutes=$(sed -n 's/^#SBATCH --time=//p' "$2" | head -1)
if [ "${{begin:-0}}" -ge {free_after} ] || [ "${{minutes:-9999}}" -le {most_minutes} ]; then exit 0; fi
echo "allocation failure: {error}" >&2
exit 1
"""
"""Accepts a script that starts after `free_after` seconds, or whose job takes at most `most_minutes`."""
ERROR = "Requested node configuration is not available"
SCRIPT = "#!/bin/sh\n#SBATCH --job-name=torchyard-1\n#SBATCH --nodes=2\nexec true\n"


class Slurm:
    """Stand-ins for `sbatch` and `scontrol`, and the batch script to submit."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.script = folder / "job.sh"
        self.script.write_text(SCRIPT)

    def put(
        self, *reservations: tuple[str, int, int], free_after: int = 10**9, most_minutes: int = 0, error: str = ERROR
    ) -> None:
        """Sets the reservations, given by name, start and end in seconds from now, and what `sbatch` accepts."""
        now = int(time.time())
        lines = [
            f"ReservationName={name} StartTime={now + start} EndTime={now + end} Nodes=n1 Users=root State=ACTIVE"
            for name, start, end in reservations
        ]
        (self.folder / "shown").write_text("".join(f"{line}\n" for line in lines))
        sbatch = SBATCH.format(folder=self.folder, free_after=free_after, most_minutes=most_minutes, error=error)
        for name, text in {"sbatch": sbatch, "scontrol": f"#!/bin/sh\ncat {self.folder}/shown\n"}.items():
            (self.folder / "bin" / name).write_text(text)
            (self.folder / "bin" / name).chmod(0o755)

    def test(self) -> dict[str, Any] | None:
        return asyncio.run(submission_check.check(str(self.script)))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return Slurm(tmp_path)


def test_a_request_that_fits_now_waits_for_no_reservation(slurm: Slurm) -> None:
    slurm.put(("maint", HOUR, 2 * HOUR), free_after=0)
    assert slurm.test() is None
    assert (slurm.folder / "calls").read_text().splitlines() == [f"--test-only {slurm.script}"]


def test_a_request_in_the_way_of_which_are_reservations_waits_for_their_end(slurm: Slurm) -> None:
    slurm.put(("one", HOUR, 2 * HOUR), ("two", 3 * HOUR, 4 * HOUR), free_after=2 * HOUR, most_minutes=60)
    waits = slurm.test()
    assert waits is not None
    assert [one["name"] for one in waits["reservations"]] == ["one"]
    assert abs(waits["until"] - time.time() - 2 * HOUR) < 60
    assert waits["limit_s"] in (58 * 60, 59 * 60)
    assert slurm.script.read_text() == SCRIPT
    assert sorted(path.name for path in slurm.folder.glob("job*")) == ["job.sh"]


@pytest.mark.parametrize("reservations", [(), (("over", -2 * HOUR, -HOUR),), (("maint", -HOUR, HOUR),)])
def test_a_request_that_does_not_fit_after_all_reservations_never_starts(slurm: Slurm, reservations: Any) -> None:
    slurm.put(*reservations)
    with pytest.raises(RpcError) as refused:
        slurm.test()
    assert refused.value.code == "never_starts"
    message = "the cluster can never start this run: Requested node configuration is not available"
    assert refused.value.message == message


def test_a_job_in_a_reservation_does_not_wait_for_the_end_of_reservations(slurm: Slurm) -> None:
    slurm.put(("torchyard_a", 0, HOUR), free_after=HOUR)
    slurm.script.write_text(SCRIPT.replace("#SBATCH --nodes", "#SBATCH --reservation=torchyard_a\n#SBATCH --nodes"))
    with pytest.raises(RpcError):
        slurm.test()


def test_a_start_a_second_before_that_of_the_reservation_is_no_refusal(slurm: Slurm) -> None:
    start = "#SBATCH --reservation=torchyard_a\n#SBATCH --begin=now+{}\n#SBATCH --nodes"
    slurm.put(("torchyard_a", HOUR, 2 * HOUR), free_after=HOUR, error="Invalid time specified")
    slurm.script.write_text(SCRIPT.replace("#SBATCH --nodes", start.format(HOUR - 1)))
    assert slurm.test() is None
    slurm.script.write_text(SCRIPT.replace("#SBATCH --nodes", start.format(60)))
    with pytest.raises(RpcError):
        slurm.test()


def test_each_component_of_a_variant_has_its_start_and_time_limit() -> None:
    text = (
        f"{SCRIPT}#SBATCH --begin=now+5\n#SBATCH --time=04:00:00\n#SBATCH hetjob\n{SCRIPT.partition(chr(10))[2]}"
        "#SBATCH --time=04:00:00\n"
    )
    later, shorter = submission_check.with_begin(text, 99.5), submission_check.with_limit(text, 30)
    assert (later.count("--begin=now+100\n"), later.count("--begin=")) == (2, 2)
    assert (shorter.count("--time=30\n"), shorter.count("--time=")) == (2, 2)
