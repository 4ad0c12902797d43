"""Apache SINGA's `cluster { … }` block of a job file.

The block gives the numbers of worker groups and server groups, which determine the strategy. Groups do not wait for
each other; the workers of one group are synchronous.

Source: `ClusterProto` in SINGA 0.3's `job.proto`, with its defaults.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torchyard_core.errors import UsageError
from torchyard_core.formatting import counted
from torchyard_core.interop.document_reader import Imported, built, refuse
from torchyard_core.interop.document_writer import DEFAULT_OPTIONS, Exported, ExportOptions, count_of, omission_remarks
from torchyard_core.interop.format_detection import detect_format, expect
from torchyard_core.interop.program_conversion import missing_program
from torchyard_core.interop.protobuf_text import Block, Entry, parse_proto, whole_number
from torchyard_core.interop.remarks import Remark
from torchyard_core.problems import nearest
from torchyard_core.topology.model import MAX_REPLICAS, Role, StrategyKind, Topology
from torchyard_core.topology.replicas import replicas_of
from torchyard_core.topology.strategies.registry import spec_of
from torchyard_core.topology.strategies.worker_groups import worker_groups

COUNTS = {
    "nworker_groups": 1,
    "nserver_groups": 1,
    "nworkers_per_group": 1,
    "nservers_per_group": 1,
    "nworkers_per_procs": 1,
    "nservers_per_procs": 1,
}
"""The keys of counts, each with its default."""
SEPARATE = "server_worker_separate"
ALLOWED = f"`cluster {{ … }}` with {', '.join(COUNTS)}, {SEPARATE}"
_LEFT = {
    "workspace": "checkpoints lie where `program.checkpoint_dir` says",
    "log_dir": "logs are kept by Torchyard",
    "start_port": "ports are chosen at submission",
    "bandwidth": "it is measured, or set in the fleet file",
    "share_memory": "it is SINGA's own",
    "sync_freq": "see `strategy.sync_every`",
    "poll_time": "it is SINGA's own",
    "server_update": "it is SINGA's own",
}
_OTHERS = (
    "vertex",
    "cloudml",
    "tf-config",
    "cluster-spec",
    "tensorflow",
    "accelerate",
    "deepspeed",
    "topology",
    "torchx",
    "slurm",
    "kubernetes",
)
"""Formats that are detected before the text is parsed as a SINGA job."""
_WORDS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def read(text: str, source: str = "job.conf") -> Imported:
    """Reads a job file. Raises FileProblem for a file without `cluster`, and for invalid counts."""
    found = detect_format(text, _OTHERS)
    if found is not None:
        expect("singa", text, source, ALLOWED)
    root = parse_proto(text, source)
    clusters = [one for one in root.entries if one.name == "cluster"]
    if len(clusters) > 1:
        message = f"`cluster` is given twice, first in line {clusters[0].line}."
        refuse(source, clusters[1].line, message, "A job has one cluster.")
    entry = root.find("cluster")
    if entry is None:
        stray = next((one for one in root.entries if one.name in COUNTS), None)
        if stray is not None:
            refuse(source, stray.line, f"`{stray.name}` stands outside of `cluster`.", f"Allowed is {ALLOWED}.")
        expect("singa", text, source, ALLOWED)
        refuse(source, 1, "there is no `cluster { … }` in this file.", f"It must hold {ALLOWED}.")
    if not isinstance(entry.value, Block):
        refuse(source, entry.line, "`cluster` is no block.", f"Allowed is {ALLOWED}.")
    named = root.find("name")
    name = named.value.strip() if named is not None and isinstance(named.value, str) else ""
    return _Cluster(entry.value, source).imported(name[:100] if name and name.isprintable() else "singa-job")


class _Cluster:
    """Reader of a `cluster` block."""

    def __init__(self, block: Block, source: str) -> None:
        self._source = source
        self._line = block.line
        self._remarks: list[Remark] = []
        self._counts = dict(COUNTS)
        self._lines: dict[str, int] = {}
        self._separate = False
        for entry in block.entries:
            self._take(entry)

    def _stop(self, line: int, message: str, hint: str) -> NoReturn:
        refuse(self._source, line, message, hint)

    def _take(self, entry: Entry) -> None:
        if entry.name in self._lines:
            first = self._lines[entry.name]
            self._stop(entry.line, f"`{entry.name}` is given twice, first in line {first}.", "Keep one of the two.")
        self._lines[entry.name] = entry.line
        value = entry.value if isinstance(entry.value, str) else "a block"
        if entry.name in COUNTS:
            least = 0 if entry.name == "nserver_groups" else 1
            number = None if entry.is_text else whole_number(value)
            if number is None or not least <= number <= MAX_REPLICAS:
                hint = f"Allowed are whole numbers from {least} to {MAX_REPLICAS}."
                shown = f"the text '{value}'" if entry.is_text else value
                self._stop(entry.line, f"`{entry.name}` is {shown}.", hint)
            self._counts[entry.name] = number
        elif entry.name == SEPARATE:
            if value.lower() not in _WORDS:
                self._stop(entry.line, f"`{SEPARATE}` is {value}.", "Allowed are true and false.")
            self._separate = _WORDS[value.lower()]
        elif entry.name in _LEFT:
            self._remarks.append(Remark(f"`{entry.name}` is left out: {_LEFT[entry.name]}.", entry.line))
        else:
            hint = nearest(entry.name, (*COUNTS, SEPARATE))
            self._stop(
                entry.line, f"`cluster` has no `{entry.name}`.", hint or f"Allowed are {', '.join(COUNTS)}, {SEPARATE}."
            )

    def imported(self, name: str) -> Imported:
        groups, servers = self._counts["nworker_groups"], self._servers()
        workers = groups * self._counts["nworkers_per_group"]
        kind = self._kind()
        strategy: dict[str, Any] = {"kind": kind.value}
        if spec_of(kind).is_asynchronous:
            strategy["worker_groups"] = groups
        pools: list[dict[str, Any]] = [{"name": "workers", "role": "worker", "replicas": workers}]
        if kind in (StrategyKind.SANDBLASTER, StrategyKind.DOWNPOUR):
            pools.append({"name": "servers", "role": "ps", "replicas": servers})
        self._say(kind)
        program = missing_program(self._remarks)
        data = {"name": name, "strategy": strategy, "pools": pools, "program": program}
        return Imported(built(data, self._source, self._line), tuple(self._remarks))

    def _servers(self) -> int:
        return self._counts["nserver_groups"] * self._counts["nservers_per_group"]

    def _kind(self) -> StrategyKind:
        """Returns the strategy that the counts determine. Raises FileProblem for several groups without servers."""
        groups = self._counts["nworker_groups"]
        if not self._servers():
            if groups > 1:
                line = self._lines.get("nserver_groups", self._line)
                self._stop(line, f"{groups} worker groups have no servers.", "Allowed is 1 or more server groups.")
            return StrategyKind.ALL_REDUCE
        if self._separate:
            return StrategyKind.SANDBLASTER if groups == 1 else StrategyKind.DOWNPOUR
        if groups == 1:
            return StrategyKind.ALL_REDUCE
        return StrategyKind.HOGWILD if self._counts["nserver_groups"] > 1 else StrategyKind.DOWNPOUR

    def _say(self, kind: StrategyKind) -> None:
        counts = self._counts
        line = self._lines.get
        for process in ("worker", "server"):
            key = f"n{process}s_per_procs"
            if counts[key] > 1:
                message = f"{counts[key]} {process}s share a process in SINGA; here each is a replica of its own."
                self._remarks.append(Remark(message, line(key)))
        if kind in (StrategyKind.SANDBLASTER, StrategyKind.DOWNPOUR) and counts["nserver_groups"] > 1:
            message = f"{counts['nserver_groups']} server groups become one of {counted(self._servers(), 'server')}."
            self._remarks.append(Remark(message, line("nserver_groups")))
        if kind is StrategyKind.DOWNPOUR and not self._separate:
            message = "servers beside the workers become replicas of their own, maybe on the same hosts."
            self._remarks.append(Remark(message, line(SEPARATE)))
        if kind is StrategyKind.ALL_REDUCE and counts["nworkers_per_group"] != self._servers():
            message = "in all_reduce every worker owns a share of the parameters: the number of servers is left out."
            self._remarks.append(Remark(message, line("nservers_per_group")))
        if kind is StrategyKind.HOGWILD and counts["nserver_groups"] != counts["nworker_groups"]:
            message = "in hogwild every worker group has its own servers: the number of server groups is left out."
            self._remarks.append(Remark(message, line("nserver_groups")))
        self._remarks.append(Remark("the document does not say how many GPUs a replica takes: set `gpus`."))


def write(topology: Topology, options: ExportOptions = DEFAULT_OPTIONS) -> Exported:
    """Writes a `cluster` block. Raises UsageError for a topology without trainers."""
    kind = topology.strategy.kind
    remarks: list[Remark] = []
    groups = [len(group) for group in worker_groups(topology, replicas_of(topology)) if group]
    if not groups:
        raise UsageError("nothing trains in this topology.", code="no-trainers", hint="Add a chief or workers.")
    if len(set(groups)) > 1:
        remarks.append(Remark(f"worker groups have {', '.join(map(str, groups))} members; there all have {groups[0]}."))
    servers = count_of(topology, Role.PS, Role.REDUCER)
    counts = {"nworker_groups": len(groups), "nserver_groups": 1, "nworkers_per_group": groups[0]}
    if kind is StrategyKind.HOGWILD:
        # For Hogwild, SINGA needs one server group per worker group, on the nodes of that worker group.
        counts |= {"nserver_groups": len(groups), "nservers_per_group": groups[0]}
    elif servers:
        counts["nservers_per_group"] = servers
    else:
        counts["nservers_per_group"] = groups[0]
    if kind is StrategyKind.REDUCTION_SERVER:
        remarks.append(Remark("SINGA has no reducers: they are written as servers, which also hold the parameters."))
    if kind is StrategyKind.DILOCO:
        remarks.append(
            Remark("SINGA has no outer optimizer: this is written as its Downpour, which exchanges each step.")
        )
    if kind is StrategyKind.NONE:
        which = "sandblaster" if servers else "all_reduce"
        remarks.append(Remark(f"the strategy is the script's own; this is written as SINGA's {which}."))
    if count_of(topology, Role.EVALUATOR):
        remarks.append(Remark("the evaluator is left out: SINGA tests in the job itself (`test_freq`)."))
    if count_of(topology, Role.CHIEF):
        remarks.append(Remark("the chief is one of the workers."))
    lines = [f"  {name}: {number}" for name, number in counts.items()]
    lines.append(f"  {SEPARATE}: {'true' if servers and kind is not StrategyKind.HOGWILD else 'false'}")
    # The strategy needs no remark, because SINGA derives it from the exported counts.
    plain = topology.model_copy(update={"strategy": type(topology.strategy)()})
    remarks += omission_remarks(plain)
    return Exported("cluster {\n" + "\n".join(lines) + "\n}\n", tuple(remarks))
