"""The run that measures a script: one trainer on one host, whose steps `torchyard_roles.profiling` records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from torchyard_core.advisor.profile import host_kind
from torchyard_core.errors import UsageError
from torchyard_core.topology.document.edits import changed_block
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Launcher, Pool, Role, Strategy, Topology

MEASUREMENTS = "torchyard-profile.json"
"""Name of the file that the run writes to the folder of its replica."""
RUNNER = "torchyard_roles.profiling.script_runner"
RUN_SUFFIX = "-profile"


def profile_topology(topology: Topology, host: str) -> Topology:
    """Returns a topology in which one rank of the program runs alone on a host and is measured.

    The run is never restarted, and neither reads nor writes a shared checkpoint folder. Raises UsageError for a
    topology without trainers, or with a launcher that cannot be measured.
    """
    trainers = [pool for pool in topology.pools if pool.role.trains]
    program = topology.program
    if not trainers:
        raise UsageError("there is no trainer to measure", code="no_trainers", hint="Add a pool of role worker.")
    if program.launcher is not Launcher.TORCH:
        raise UsageError(
            "a program with launcher command cannot be measured, since it may be in any framework",
            code="not_measurable",
            hint="Set program.launcher to torch, with `script` or `module`.",
        )
    pool = _measured_pool(trainers)
    target = ("-m", program.module) if program.module else (program.script or "",)
    alone = changed_block(
        pool, {"role": "worker", "replicas": 1, "min_replicas": None, "hosts": [host], "placement": None}
    )
    measured = changed_block(
        program,
        {
            "script": None,
            "module": RUNNER,
            "args": [MEASUREMENTS, *target, *program.args],
            "checkpoint_dir": None,
            "max_restarts": 0,
            "warm_spares": False,
            "notify": None,
            "ends_with": None,
        },
    )
    return Topology(
        version=1,
        name=f"{topology.name[: 100 - len(RUN_SUFFIX)]}{RUN_SUFFIX}",
        strategy=Strategy(),
        pools=(_with_one_gpu(alone),),
        program=measured,
    )


def program_settings(topology: Topology) -> str:
    """Returns a hash of the measured process's inputs other than its files: arguments, environment and setup.

    `topology` must have trainers.
    """
    program, pool = topology.program, _measured_pool([each for each in topology.pools if each.role.trains])
    parts = (program.command, program.args, program.env, program.setup, program.python, pool.args, pool.env)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _measured_pool(trainers: Sequence[Pool]) -> Pool:
    return next((each for each in trainers if each.role is Role.WORKER), trainers[0])


def _with_one_gpu(pool: Pool) -> Pool:
    return changed_block(pool, {"gpus": 1}) if pool.gpus > 1 else pool


def hosts_to_measure(trainer_hosts: Sequence[str], known: Sequence[HostFacts]) -> tuple[str, ...]:
    """Returns one host of each kind among the hosts on which trainers are placed."""
    facts = {host.name: host for host in known}
    kinds: dict[str, str] = {}
    for name in dict.fromkeys(trainer_hosts):
        kinds.setdefault(host_kind(facts[name]), name)
    return tuple(kinds.values())
