"""Tests of runs on a Slurm cluster: training, the queue, requests that can never start, users, and fetching."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.slurm.conftest import DesktopFactory
from tests.end_to_end.slurm.jobs import COMMAND, PROGRAMS, RUN_S, WAITS
from tests.lab.slurm import SlurmCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

SHOWS_CLUSTER = WAITS.replace(
    'print("on", socket.gethostname(), os.environ["CUDA_VISIBLE_DEVICES"], flush=True)',
    """import json
config = json.loads(os.environ["TF_CONFIG"])
task = f"{config['task']['type']}-{config['task']['index']}"
gpus = os.environ["CUDA_VISIBLE_DEVICES"] or "-"
print(socket.gethostname(), gpus, task, json.dumps(config["cluster"]), flush=True)""",
)
"""A program that prints its node, its GPUs, its role and the addresses of all replicas, and waits like WAITS."""


@pytest.mark.train
def test_a_plain_ddp_script_trains_on_three_nodes(on_cluster: DesktopFactory) -> None:
    desktop = on_cluster()
    file = desktop.write(PROGRAMS / "plain_ddp.py")
    done = desktop.torchyard("run", file, "--on", "hpc", "-y", "--json", timeout=RUN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[-1]["event"] == "run_ended"
    assert events[-1]["state"] == "succeeded"
    run_id = events[-1]["run_id"]
    logs = desktop.torchyard("runs", "logs", run_id, "--json")
    lines = [json.loads(json.loads(line)["line"]) for line in logs.stdout.splitlines() if '{\\"rank\\"' in line]
    assert sorted(line["rank"] for line in lines) == [0, 1, 2]
    assert {line["world_size"] for line in lines} == {3}
    assert all(line["same_model"] and line["ranks"] == [0, 1, 2] for line in lines)
    nodes = json.loads((desktop.run_dir(run_id) / "job" / "started.json").read_text())["nodes"]
    assert nodes == {"hpc.1": "n1", "hpc.2": "n2", "hpc.3": "n3"}


def test_a_run_waits_with_slurm_s_reason_and_starts_when_nodes_are_free(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    desktop = on_cluster()
    job = desktop.occupy()
    file = desktop.write(WAITS, program=COMMAND)
    exported = desktop.torchyard("export", "slurm", file, "--on", "hpc")
    assert exported.returncode == 0, exported.stderr
    planned = desktop.torchyard("plan", file, "--on", "hpc", "--json")
    assert planned.returncode == 0, planned.stderr
    assert [replica["host"] for replica in json.loads(planned.stdout)["replicas"]] == ["hpc.1", "hpc.2", "hpc.3"]
    assert [(node["count"], node["cpus"]) for node in json.loads(planned.stdout)["nodes"]] == [(3, 1)]
    run_id = desktop.run(file)
    # The script's folder path also contains the run's ID. The last line contains the agent's path, so it is not
    # compared.
    *submitted, _ = (desktop.run_dir(run_id) / "job" / "job.sh").read_text().replace(run_id, "RUN-ID").splitlines()
    *printed, _ = exported.stdout.splitlines()
    folder = "/root/.torchyard/hosts/hpc.1/runs/RUN-ID/job"
    assert [line.replace("JOB-FOLDER", folder) for line in printed] == submitted
    assert desktop.wait_for(run_id, "waiting", "Resources")["nodes"] == {}
    logs = desktop.torchyard("runs", "logs", run_id)
    assert (logs.returncode, logs.stdout) == (0, ""), logs.stderr
    assert "waits in the queue: Resources" in logs.stderr
    (waiting,) = (one for one in cluster.jobs() if one != job)
    follower = desktop.start("runs", "logs", run_id, "-f")
    assert follower.stderr is not None
    assert "waits in the queue: Resources" in follower.stderr.readline()
    cluster.run("scancel", job)
    desktop.wait_for(run_id, "running")
    (cluster.controller.home / "end").touch()
    shown = desktop.wait_for(run_id, "succeeded")
    assert [one["job_id"] for one in shown["jobs"]] == [waiting]
    assert shown["nodes"] == {"hpc.1": "n1", "hpc.2": "n2", "hpc.3": "n3"}
    text = desktop.torchyard("runs", "show", run_id).stdout
    assert [line.split()[1:3] for line in text.splitlines() if line.startswith("worker-1")] == [["hpc.2", "n2"]]
    followed, _ = follower.communicate(timeout=RUN_S)
    assert (follower.returncode, sorted(line.split()[3] for line in followed.splitlines())) == (0, ["n1", "n2", "n3"])
    fetched = desktop.torchyard("runs", "fetch", run_id, "*/result.txt", "-o", desktop.directory / "fetched")
    assert fetched.returncode == 0, fetched.stderr
    results = {path.read_text() for path in (desktop.directory / "fetched").rglob("result.txt")}
    assert results == {"n1", "n2", "n3"}


def test_logs_are_followed_through_a_requeue(on_cluster: DesktopFactory, cluster: SlurmCluster) -> None:
    desktop = on_cluster()
    run_id = desktop.run(desktop.write(WAITS, replicas=2, program=COMMAND))
    desktop.wait_for(run_id, "running")
    follower = desktop.start("runs", "logs", run_id, "-f")
    assert follower.stdout is not None
    first = sorted(follower.stdout.readline().split()[0] for _ in range(2))
    assert first == ["worker-0", "worker-1"]
    (job,) = cluster.jobs()
    cluster.run("scontrol", "requeue", job)
    wait_until(lambda: any(event["event"] == "interrupted" for event in desktop.journal(run_id)), RUN_S)
    desktop.wait_for(run_id, "running")
    # The program prints a line at each start.
    assert sorted(follower.stdout.readline().split()[0] for _ in range(2)) == first
    assert follower.poll() is None
    (cluster.controller.home / "end").touch()
    follower.communicate(timeout=RUN_S)
    assert follower.returncode == 0


def test_a_run_is_stopped_while_it_waits_and_while_it_runs(on_cluster: DesktopFactory, cluster: SlurmCluster) -> None:
    desktop = on_cluster()
    file = desktop.write(WAITS, program=COMMAND)
    job = desktop.occupy()
    waiting = desktop.run(file)
    assert desktop.torchyard("runs", "stop", waiting).returncode == 0
    assert desktop.shown(waiting)["state"] == "stopped"
    assert list(cluster.jobs()) == [job]
    cluster.run("scancel", job)
    running = desktop.run(file)
    desktop.wait_for(running, "running")
    assert desktop.torchyard("runs", "stop", running).returncode == 0
    assert desktop.shown(running)["state"] == "stopped"
    wait_until(lambda: not cluster.jobs())


def test_a_job_that_is_cancelled_in_slurm_is_not_started_again(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    desktop = on_cluster()
    run_id = desktop.run(desktop.write(WAITS, program=COMMAND))
    desktop.wait_for(run_id, "running")
    cluster.run("scancel", *cluster.jobs())
    desktop.wait_for(run_id, "stopped", "was cancelled in Slurm")
    wait_until(lambda: not cluster.jobs())


def test_a_request_that_can_never_be_satisfied_ends_the_launch_with_exit_code_3(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    desktop = on_cluster(time_limit="5-00:00:00")
    file = desktop.write(WAITS, program=COMMAND)
    assert "the cluster can never start this run: Partition" in desktop.run(file, expect=3)
    assert "8" in desktop.run(file, "--set", "pools.workers.cpus=64", expect=3)
    assert not cluster.jobs()
    assert not list((cluster.controller.home / ".torchyard" / "hosts" / "hpc.1" / "runs").glob("*"))


def test_servers_without_gpus_are_components_of_a_heterogeneous_job(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    desktop = on_cluster()
    pools = [
        {"name": "servers", "role": "ps", "replicas": 1, "cpus": 8},
        {"name": "workers", "role": "worker", "replicas": 2, "gpus": 4},
    ]
    file = desktop.write(SHOWS_CLUSTER, program=COMMAND, pools=pools)
    run_id = desktop.run(file)
    desktop.wait_for(run_id, "running")
    script = (desktop.run_dir(run_id) / "job" / "job.sh").read_text()
    assert script.count("#SBATCH hetjob\n") == 1
    logs = desktop.torchyard("runs", "logs", run_id, "--json").stdout
    shown = {}
    for line in logs.splitlines():
        entry = json.loads(line)
        node, gpus, task, cluster_spec = entry["line"].split(maxsplit=3)
        shown[entry["replica"]] = node, gpus, task, json.loads(cluster_spec)
    assert {name: found[:3] for name, found in shown.items()} == {
        "ps-0": ("n3", "-", "ps-0"),
        "worker-0": ("n1", "0,1,2,3", "chief-0"),
        "worker-1": ("n2", "0,1,2,3", "worker-0"),
    }
    for *_, spec in shown.values():
        assert {role: len(addresses) for role, addresses in spec.items()} == {"ps": 1, "chief": 1, "worker": 1}
    (cluster.controller.home / "end").touch()
    desktop.wait_for(run_id, "succeeded")
    wait_until(lambda: not cluster.jobs())


def test_a_run_goes_on_when_its_desktop_is_killed_and_another_one_follows_it(
    on_cluster: DesktopFactory, cluster: SlurmCluster
) -> None:
    desktop = on_cluster()
    attached = desktop.start("run", desktop.write(WAITS, replicas=2, program=COMMAND), "--on", "hpc", "-y")

    def states() -> list[str]:
        return [one["state"] for one in json.loads(desktop.torchyard("runs", "list", "--json").stdout)]

    wait_until(lambda: states() == ["running"], RUN_S, what=cluster.log)
    assert attached.poll() is None
    attached.kill()
    attached.communicate()
    (run,) = json.loads(desktop.torchyard("runs", "list", "--json").stdout)
    assert run["state"] == "running"
    follower = desktop.start("runs", "logs", run["run_id"], "-f")
    assert follower.stdout is not None
    assert sorted(follower.stdout.readline().split("on ")[1].strip() for _ in range(2)) == ["n1", "n2"]
    (cluster.controller.home / "end").touch()
    follower.communicate(timeout=RUN_S)
    assert follower.returncode == 0
    desktop.wait_for(run["run_id"], "succeeded")


def test_two_users_and_two_runs_of_one_user_share_a_node(on_cluster: DesktopFactory, cluster: SlurmCluster) -> None:
    desktops = {"root": on_cluster(), "lee": on_cluster(user="lee")}
    runs = []
    for user in ("root", "root", "lee"):
        desktop = desktops[user]
        pool = [{"name": "workers", "role": "worker", "replicas": 1, "gpus": 1}]
        runs.append((user, desktop.run(desktop.write(WAITS, program=COMMAND, pools=pool))))
    seen = set()
    for user, run_id in runs:
        desktops[user].wait_for(run_id, "running")
        log = desktops[user].torchyard("runs", "logs", run_id).stdout
        seen.add(log.strip())
    assert seen == {"on n1 0", "on n1 1", "on n1 2"}
    listed = json.loads(desktops["lee"].torchyard("runs", "list", "--json").stdout)
    assert [run["run_id"] for run in listed] == [runs[2][1]]
    for user in ("root", "lee"):
        (cluster.controller.home_of(user) / "end").touch()
    for user, run_id in runs:
        desktops[user].wait_for(run_id, "succeeded")
