"""A Slurm cluster of lab hosts: a controller that is also the login node, and nodes, all without systemd.

    with SlurmCluster(tmp_path, nodes=3) as cluster:
        cluster.run("srun", "-N2", "hostname").stdout

munged, slurmctld and slurmd are the programs from Debian's packages. They are killed when their hosts are destroyed.
Starting slurmdbd and MariaDB takes nine seconds, so they are started only with `database=True`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests.lab.hosts.boot import INSIDE
from tests.lab.hosts.host import LabHost
from tests.lab.hosts.spec import HostSpec
from tests.lab.lab import Lab
from tests.lab.needs import SEARCH_PATH, LabBroken, LabUnavailable
from tests.waiting import NotInTime, wait_until

PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
}
"""Programs of the cluster, with the Debian package of each."""
DATABASE_PROGRAMS = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server"}
FOLDER = f"{INSIDE}/slurm"
"""The folder of Slurm's files on each host. No host can see another host's folder."""
CONF = f"{FOLDER}/slurm.conf"
CONTROLLER = "ctl"
GPUS = 4
"""Number of GPUs of a node with GPUs. Their device files are equivalent to /dev/null."""
READY_WITHIN_S = 60.0

_SETTINGS = {
    "ClusterName": "lab",
    "SlurmUser": "root",
    "AuthType": "auth/munge",
    "AuthInfo": "cred_expire=5",
    "StateSaveLocation": f"{FOLDER}/state",
    "SlurmdSpoolDir": f"{FOLDER}/spool",
    "SlurmctldPidFile": f"{FOLDER}/slurmctld.pid",
    "SlurmdPidFile": f"{FOLDER}/slurmd.pid",
    "SlurmctldLogFile": f"{FOLDER}/slurmctld.log",
    "SlurmdLogFile": f"{FOLDER}/slurmd.log",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "SlurmdParameters": "config_overrides",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory",
    "DefMemPerCPU": "500",  # Otherwise, a job without --mem takes all memory of its nodes.
    "GresTypes": "gpu",
    "KillWait": "5",
    "SlurmdTimeout": "10",
    "ReturnToService": "2",
    "SwitchType": "switch/none",
    "MpiDefault": "none",
    "JobAcctGatherType": "jobacct_gather/none",
    "SchedulerParameters": "bf_interval=1,sched_interval=1,batch_sched_delay=0",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
}


def lacking(*, database: bool = False) -> list[str]:
    """Returns the programs that this machine lacks, with their Debian packages."""
    wanted = {**PROGRAMS, **(DATABASE_PROGRAMS if database else {})}
    return [
        f"{program} (Debian package {package})"
        for program, package in wanted.items()
        if shutil.which(program, path=SEARCH_PATH) is None
    ]


class SlurmCluster:
    """A cluster whose users have the same HOME on all of its hosts.

    The partitions `main` (default), `graceful` (with a GraceTime) and `urgent` contain all nodes. Jobs of `urgent`
    preempt those of the other two.

    Args:
        directory: Folder for all files; the caller owns the folder.
        nodes: Number of nodes, called n1, n2, …; Slurm is configured with 8 CPUs for each.
        gpu_nodes: Number of the first nodes that have GPUS GPUs of the type a100.
        users: Accounts in addition to root, who may log in with the lab's key.
        settings: Lines of slurm.conf that override or extend the default settings.
        database: Whether to start slurmdbd and MariaDB, for `sacct` and account limits.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        gpu_nodes: int = 2,
        users: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        database: bool = False,
    ):
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self._gpu_names = self.names[:gpu_nodes]
        self._settings = {**_SETTINGS, **(settings or {})}
        self._database = database
        self._key = os.urandom(1024)
        specs = [
            HostSpec(name, users=tuple(users), ssh_environment={"SLURM_CONF": CONF})
            for name in (CONTROLLER, *self.names)
        ]
        self.lab = Lab(hosts=specs, directory=directory, shared_home=True)

    def __enter__(self) -> Self:
        if lacks := lacking(database=self._database):
            raise LabUnavailable(f"This machine cannot run a Slurm cluster; it lacks: {', '.join(lacks)}.")
        self.lab.open()
        try:
            self._write_files()
            for host in self.lab.hosts:
                self._start_munged(host)
            if self._database:
                self._start_database()
            self._start(self.controller, "slurmctld", "-D")
            for name in self.names:
                self._start(self.lab[name], "slurmd", "-D", "-N", name)
            if self._database:
                self._add_account()
            self.wait_until_idle()
        except BaseException:  # This also handles Ctrl-C, because no host may outlive its lab.
            self.lab.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.lab.close()

    @property
    def controller(self) -> LabHost:
        """The host of slurmctld, which is also the login node."""
        return self.lab[CONTROLLER]

    def run(self, *argv: str, user: str = "root", timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs a program on the login node, without SSH."""
        return self.controller.exec(argv, user, timeout=timeout)

    def jobs(self) -> dict[str, str]:
        """Returns the states of all jobs in the queue by ID, such as {"1": "RUNNING"}."""
        done = self.run("squeue", "-h", "-O", "JobArrayID:|,State:|")
        fields = (line.split("|") for line in done.stdout.splitlines())
        return {found[0].strip(): found[1].strip() for found in fields if len(found) > 1}

    def wait_until_idle(self, names: Sequence[str] | None = None, *states: str) -> None:
        """Waits until the given nodes (all nodes by default) are idle, or in one of these states."""
        allowed = states or ("idle",)
        wanted = set(self.names if names is None else names)

        def are_idle() -> bool:
            lines = (line.split() for line in self.run("sinfo", "-h", "-N", "-o", "%n %t").stdout.splitlines())
            return wanted <= {line[0] for line in lines if line[1] in allowed}

        try:
            wait_until(are_idle, READY_WITHIN_S)
        except NotInTime:
            raise LabBroken(f"The nodes {sorted(wanted)} did not become idle: {self.log()}") from None

    def clean(self) -> None:
        """Cancels all jobs, waits until all nodes are idle, and removes the users' files."""
        if jobs := {job.partition("_")[0] for job in self.jobs()}:  # All elements of an array are cancelled at once.
            self.run("scancel", "--signal=KILL", "--full", *jobs)
            self.run("scancel", *jobs)
        wait_until(lambda: not self.jobs(), READY_WITHIN_S, what=self.log)
        self.wait_until_idle()
        for user in ("root", *self.controller.spec.accounts()):
            home = self.controller.home_of(user)
            for name in (".torchyard", "steps"):
                shutil.rmtree(home / name, ignore_errors=True)
            (home / "end").unlink(missing_ok=True)

    def destroy(self, name: str) -> None:
        """Destroys a node with all of its processes, like a power cut."""
        self.lab[name].destroy()

    def reboot(self, name: str, on_boot: Callable[[LabHost], object] = lambda host: None) -> None:
        """Boots a destroyed node, and waits until it is idle or runs a job.

        The node is first set to the state DOWN. Otherwise, the jobs that ran on it would stay in the state COMPLETING
        forever. `on_boot` is called before the node gets jobs.
        """
        host = self.lab[name]
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=destroyed")
        host.mend_cable()
        host.boot(self.lab.identity_file.with_suffix(".pub").read_text().strip())
        host.wait_until_ready()
        on_boot(host)
        self._start_munged(host)
        self._start(host, "slurmd", "-D", "-N", name)
        self.run("scontrol", "update", f"nodename={name}", "state=resume")
        self.wait_until_idle([name], "idle", "mix", "alloc")

    @contextmanager
    def configured(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Overrides settings of slurm.conf in the running cluster during the block."""
        before = self._settings
        try:
            self._reconfigure({**before, **settings})
            yield
        finally:
            self._reconfigure(before)

    def _reconfigure(self, settings: dict[str, str]) -> None:
        self._settings = settings
        conf = self._conf()
        for host in self.lab.hosts:
            (host.folder / "slurm" / "slurm.conf").write_text(conf)
        done = self.run("scontrol", "reconfigure")
        if done.returncode:
            raise LabBroken(f"Slurm did not read its configuration again: {done.stderr}")

    def log(self) -> str:
        """Returns the last lines of the daemons' logs."""
        texts = []
        for host in self.lab.hosts:
            for path in sorted((host.folder / "slurm").glob("*.log")):
                texts.append(f"{host.name} {path.name}:\n{path.read_text(errors='replace')[-2000:]}")
        return "\n".join(texts)

    def fleet_entry(self, user: str = "root", **extra: Any) -> dict[str, Any]:
        """Returns the fleet file's entry of the cluster, with the login of `user`."""
        host = self.controller
        login = {
            "address": host.address,
            "port": host.port,
            "user": user,
            "identity_file": str(self.lab.identity_file),
        }
        return {"name": "hpc", "kind": "slurm", "login": login, **extra}

    def _write_files(self) -> None:
        conf = self._conf()
        for host in self.lab.hosts:
            folder = host.folder / "slurm"
            for name in ("state", "spool"):
                (folder / name).mkdir(parents=True)
            (folder / "munge.key").write_bytes(self._key)
            (folder / "munge.key").chmod(0o400)
            (folder / "slurm.conf").write_text(conf)
            # Slurm removes GPUs for which only a number is given, and drains their nodes.
            (folder / "gres.conf").write_text(
                "".join(
                    f"NodeName={name} Name=gpu Type=a100 File={FOLDER}/gpu[0-{GPUS - 1}]\n" for name in self._gpu_names
                )
            )
            # The default plugin and `disabled` are fatal in a container.
            # Hosts of the lab have no mounted control groups, which proctrack/cgroup needs.
            mounts = f"CgroupMountpoint={FOLDER}/cgroup\nCgroupAutomount=yes\n"
            needs_mounts = self._settings["ProctrackType"] == "proctrack/cgroup"
            (folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\n{mounts if needs_mounts else ''}")
            for number in range(GPUS):
                os.mknod(folder / f"gpu{number}", 0o666 | 0o020000, os.makedev(1, 3))

    def _conf(self) -> str:
        storage = {"AccountingStorageType": "accounting_storage/none"}
        if self._database:
            storage = {
                "AccountingStorageType": "accounting_storage/slurmdbd",
                "AccountingStorageHost": self.controller.address,
                "AccountingStorageEnforce": "associations,limits",
            }
        lines = [f"SlurmctldHost={CONTROLLER}({self.controller.address})"]
        lines += [f"{name}={value}" for name, value in {**storage, **self._settings}.items()]
        for name in self.names:
            gres = f" Gres=gpu:a100:{GPUS}" if name in self._gpu_names else ""
            lines.append(
                f"NodeName={name} NodeHostname={name} NodeAddr={self.lab[name].address} CPUs=8 RealMemory=16000{gres}"
            )
        all_nodes = f"Nodes={','.join(self.names)} State=UP MaxTime=1-00:00:00"
        lines += [
            f"PartitionName=main {all_nodes} Default=YES PriorityTier=1",
            f"PartitionName=graceful {all_nodes} PriorityTier=1 GraceTime=60",
            f"PartitionName=urgent {all_nodes} PriorityTier=10 PreemptMode=off",
        ]
        return "\n".join(lines) + "\n"

    def _start_munged(self, host: LabHost) -> None:
        # Connections to slurmdbd use munge's default socket, regardless of AuthInfo.
        host.exec(["mkdir", "-p", "/run/munge"], check=True)
        files = {"key-file": "munge.key", "log-file": "munged.log"}
        files |= {"pid-file": "munged.pid", "seed-file": "munged.seed"}
        paths = [f"--{option}={FOLDER}/{name}" for option, name in files.items()]
        host.exec(["munged", "--force", "--num-threads=1", f"--origin={host.address}", *paths], check=True)

    def _start(self, host: LabHost, program: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        command = " ".join(["exec", program, *arguments])
        host.exec(
            ["sh", "-c", f"cd {FOLDER} && ({command}) </dev/null >>{FOLDER}/{program}-output.log 2>&1 &"],
            env={"SLURM_CONF": CONF, **(env or {})},
            check=True,
        )

    def _start_database(self) -> None:
        """Starts MariaDB with an empty database, then slurmdbd."""
        host, data, socket = self.controller, f"{FOLDER}/mysql", f"{FOLDER}/mysql.socket"
        names = ["--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db"]
        host.exec(["mariadb-install-db", *names, "--auth-root-authentication-method=normal"], check=True)
        options = ["--no-defaults", "--user=root", f"--datadir={data}", f"--socket={socket}", "--skip-networking"]
        self._start(host, "mariadbd", *options, "--innodb-log-file-size=8M", f"--pid-file={FOLDER}/mysql.pid")
        wait_until(lambda: (host.folder / "slurm" / "mysql.socket").exists(), READY_WITHIN_S, what=self.log)
        conf = host.folder / "slurm" / "slurmdbd.conf"
        conf.write_text(
            f"AuthType=auth/munge\nDbdHost={CONTROLLER}\n"
            f"DbdAddr={host.address}\nSlurmUser=root\nStorageType=accounting_storage/mysql\nStorageHost=localhost\n"
            f"StorageUser=root\nStorageLoc=slurm\nLogFile={FOLDER}/slurmdbd.log\nPidFile={FOLDER}/slurmdbd.pid\n"
        )
        conf.chmod(0o600)
        self._start(host, "slurmdbd", "-D", env={"MYSQL_UNIX_PORT": socket})
        # slurmctld exits if it cannot reach slurmdbd.
        wait_until(lambda: not self.run("sacctmgr", "-n", "list", "cluster").returncode, READY_WITHIN_S, what=self.log)
        self.run("sacctmgr", "-i", "add", "cluster", "lab")

    def _add_account(self) -> None:
        """Adds the account `nlp`, of which all users are members."""
        self.run("sacctmgr", "-i", "add", "account", "nlp", "cluster=lab")
        self.run(
            "sacctmgr",
            "-i",
            "add",
            "user",
            ",".join(["root", *self.controller.spec.accounts()]),
            "account=nlp",
            "cluster=lab",
        )
