"""Tests of runs from start to end, with real keepers, sockets and processes."""

from __future__ import annotations

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import KeeperCluster, python, replica, shell
from tests.waiting import eventually
from torchyard_agent.log_index import RECORD

REPORTS = """
import json, os, socket
def report(**metrics):
    address = os.environ["TORCHYARD_REPORT"].replace("@", "\\0", 1)
    message = {"replica": os.environ["TORCHYARD_REPLICA"], "local_rank": 0, "metrics": metrics}
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(json.dumps(message).encode(), address)
"""


def test_a_run_on_three_hosts_succeeds_in_all_journals(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b, c = await cluster.add("gpu-a", "gpu-b", "gpu-c")
        await cluster.begin(
            replica("chief-0", "gpu-a", shell("echo chief; pwd; echo $TOKEN")),
            replica("worker-0", "gpu-b", shell("echo worker")),
            replica("worker-1", "gpu-c", shell("echo one; echo two >&2"), shell("echo second")),
        )
        ended = await cluster.end()
        assert (ended["state"], ended["reason"]) == ("succeeded", "")
        assert {one["name"]: (one["host"], one["state"], one["exit_code"]) for one in ended["replicas"]} == {
            "chief-0": ("gpu-a", "succeeded", 0),
            "worker-0": ("gpu-b", "succeeded", 0),
            "worker-1": ("gpu-c", "succeeded", 0),
        }
        assert a.states()[:3] == ["waiting", "starting", "running"]
        assert a.output("chief-0") == f"chief\n{a.run_dir}/work\nhush\n"
        assert c.output("worker-1") == "one\ntwo\n"
        assert c.output("worker-1", 1) == "second\n"
        for host in (b, c):
            assert host.ended()["state"] == "succeeded"
            assert host.states()[-1] == "succeeded"
        assert "hush" not in (a.run_dir / "journal.jsonl").read_text() + (a.run_dir / "run.json").read_text()

    run_scenario(scenario)


def test_the_keeper_notes_when_each_rank_wrote(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        index = a.run_dir / "logs" / "worker-0.log.times"
        noted = f"while [ ! -e {index} ]; do sleep 0.01; done; sleep 0.02; echo two"
        await cluster.begin(replica("worker-0", "gpu-a", shell(f"echo one; {noted}; sleep 600")))
        await eventually(lambda: index.exists() and index.stat().st_size == 2 * RECORD)
        (size, first), (whole, second) = (line.split() for line in index.read_text().splitlines())
        assert (size, whole) == ("4", "8")
        assert float(first) < float(second)
        await a.call("stop", force=True)

    run_scenario(scenario)


def test_the_journal_numbers_its_lines_and_notifies_clients(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await cluster.begin(replica("worker-0", "gpu-a", shell("true")))
        await cluster.end()
        events = a.journal()
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert len({event["epoch"] for event in events}) == 1
        assert [event["time"] for event in events] == sorted(event["time"] for event in events)
        worker = [event["state"] for event in events if event["event"] == "replica_state"]
        assert worker == ["pending", "starting", "running", "succeeded"]
        await eventually(lambda: a.notifications == len(events))

    run_scenario(scenario)


def test_reports_reach_the_primary_and_the_end_of_the_journal(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        a, b = await cluster.add("gpu-a", "gpu-b")
        wait = "import time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
        work = (
            REPORTS
            + "report(step=1, loss=2.5, accuracy=0.5, epoch=3)\n"
            + wait
            + "report(step=7, loss=float('nan'), throughput=8.0, accuracy=0.75)"
        )
        await cluster.begin(
            replica("chief-0", "gpu-a", shell("while [ ! -e go ]; do sleep 0.01; done")),
            replica("worker-0", "gpu-b", python(work)),
        )
        await eventually(lambda: any(event["event"] == "report" for event in a.journal()))
        first = next(event for event in a.journal() if event["event"] == "report")
        assert (first["replica"], first["step"], first["loss"], first["first"]) == ("worker-0", 1, 2.5, True)
        # The script reports a metric named `epoch`. It must not overwrite the journal's own field of that name.
        assert first["custom"] == {"accuracy": 0.5, "epoch": 3.0}
        status = await a.call("status")
        assert status["first_step_at"] is not None
        assert status["metrics"]["worker-0"]["step"] == 1
        there = await b.call("metrics")
        assert list(there["pids"]) == ["worker-0"]
        assert there["metrics"]["worker-0"]["loss"] == 2.5
        for host in (a, b):
            (host.run_dir / "work" / "go").touch()
        ended = await cluster.end()
        last = [event for event in a.journal() if event["event"] == "report"][-1]
        assert (last["step"], last["loss"], last.get("not_finite")) in ((1, 2.5, None), (7, None, ["loss"]))
        assert ended["metrics"]["worker-0"] == {
            **{"step": 7, "loss": None, "throughput": 8.0},
            **{"accuracy": 0.75, "epoch": 3.0},
        }
        assert 0 <= ended["timings"]["started_s"] <= ended["timings"]["first_step_s"] <= ended["timings"]["ended_s"]

    run_scenario(scenario)


def test_ends_with_chief_ends_the_run_with_the_chief(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        await cluster.add("gpu-a", "gpu-b")
        await cluster.begin(
            replica("chief-0", "gpu-a", shell("sleep 0.2")),
            replica("ps-0", "gpu-b", shell("sleep 1000")),
            replica("worker-0", "gpu-b", shell("exec sleep 1000")),
            ends_with="chief",
        )
        ended = await cluster.end()
        assert ended["state"] == "succeeded"
        assert [one["state"] for one in ended["replicas"]] == ["succeeded", "stopped", "stopped"]

    run_scenario(scenario)


def test_an_evaluator_that_fails_ends_nothing(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await cluster.begin(
            replica("worker-0", "gpu-a", shell("while [ ! -e go ]; do sleep 0.01; done")),
            replica("evaluator-0", "gpu-a", shell("echo no checkpoint; exit 3")),
        )
        await eventually(lambda: any(event.get("state") == "failed" for event in a.journal()))
        (a.run_dir / "work" / "go").touch()
        ended = await cluster.end()
        assert ended["state"] == "succeeded"
        evaluator = ended["replicas"][1]
        assert (evaluator["state"], evaluator["exit_code"]) == ("failed", 3)
        assert evaluator["reason"] == "exited with 3; its last line was: no checkpoint"

    run_scenario(scenario)


def test_setup_lines_run_in_the_shell_that_becomes_the_rank(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        setup = ["export GREETING='hello there'", "cd /", "greet() { echo $GREETING; }", "greet"]
        await cluster.begin(replica("worker-0", "gpu-a", shell('echo "$GREETING $0 $1"; pwd')), setup=setup)
        assert (await cluster.end())["state"] == "succeeded"
        assert a.output("worker-0") == "hello there\nhello there /bin/sh \n/\n"

    run_scenario(scenario)
