"""`torchyard hosts`: the fleet file, and checks, audit logs and keys of hosts."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchyard_agent.protocol.attribution import clean_name
from torchyard_core.cli.calendar_sync_messages import sync_calendar
from torchyard_core.cli.context import CommandContext, Yes, command_context
from torchyard_core.cli.login_prompts import terminal_questions
from torchyard_core.cli.output import Json, as_called, host_progress, print_json, remark, say, table
from torchyard_core.cli.views import audit_table
from torchyard_core.errors import AgentMissing, HostError, UsageError
from torchyard_core.fleet.host_audit import HostAudit, audit_of, by_time
from torchyard_core.fleet.host_check import HostCheck, check_host, gpu_summary
from torchyard_core.fleet.host_facts_cache import forget_facts, load_facts
from torchyard_core.fleet.host_fields import Transport
from torchyard_core.fleet.host_key_trust import record_key, show_key
from torchyard_core.fleet.inventory import Host, add_host, remove_host
from torchyard_core.formatting import memory, since
from torchyard_core.problems import no_lines
from torchyard_core.yaml_io.model_validation import validate

if TYPE_CHECKING:
    from torchyard_core.fleet.ssh import SshDialer


app = typer.Typer(help="The hosts that you may use: list, add, remove, check, audit, trust.", no_args_is_help=True)

NAMES = typer.Argument(metavar="NAME", help="Names of the fleet file [default: all].", show_default=False)
TRUSTED = typer.Argument(metavar="NAME", help="Names of the fleet file, or of bastions.", show_default=False)
NAME = typer.Argument(metavar="NAME", help="Its name in the fleet file.", show_default=False)


@app.command("list")
def list_hosts(context: typer.Context, as_json: Json = False) -> None:
    """List the hosts and clusters of the fleet file, hosts with the facts found by their last check.

    Example: torchyard hosts list
    """
    chosen = command_context(context)
    inventory = chosen.inventory()
    facts = load_facts(chosen.facts_file)
    rows: list[list[str]] = []
    listed: list[dict[str, Any]] = []
    for host, known in zip(inventory.hosts, chosen.known(inventory), strict=True):
        checked_at = str(facts[host.name]["checked_at"]) if known.checked else ""
        entry = host.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        gpus = [
            {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "memory_mb": gpu.memory_mb} for gpu in known.gpus
        ]
        found = {"checked_at": checked_at or None, "cpus": known.cpus, "memory_gb": known.memory_gb, "gpus": gpus}
        listed.append({**entry, **found, "torch": known.torch})
        rows.append(
            [
                host.name,
                "this computer" if host.local else host.place,
                "-" if known.cpus is None else str(known.cpus),
                "-" if known.memory_gb is None else memory(known.memory_gb * 1024),
                gpu_summary([gpu.name for gpu in known.gpus]) if known.checked else "-",
                known.torch or "-",
                " ".join(f"{key}={value}" for key, value in host.labels.items()) or "-",
                since(checked_at) if checked_at else "never",
            ]
        )
    if as_json:
        clusters = [one.model_dump(mode="json", exclude_none=True, exclude_unset=True) for one in inventory.clusters]
        print_json([*listed, *clusters])
    elif rows:
        table(("NAME", "ADDRESS", "CPUS", "MEMORY", "GPUS", "TORCH", "LABELS", "CHECKED"), rows)
    else:
        say("The fleet has no hosts.")
    if not as_json:
        for cluster in inventory.clusters:
            say(f"Cluster {cluster.name}: Slurm, `torchyard hosts check {cluster.name}` shows its nodes.")
    if inventory.document is None:
        remark(f"There is no fleet file yet ({inventory.path}): `torchyard hosts add NAME --address …` makes it.")


@app.command("add")
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in topologies.", show_default=False)],
    address: Annotated[
        str | None, typer.Option(help="Address, or a Host of ~/.ssh/config [default: the name].")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port of its SSH server [default: 22].")] = None,
    user: Annotated[str | None, typer.Option(help="The login.")] = None,
    identity_file: Annotated[str | None, typer.Option(help="The private key's file.")] = None,
    proxy_jump: Annotated[str | None, typer.Option(help="Bastions, comma-separated.")] = None,
    python: Annotated[str | None, typer.Option(help="The interpreter for programs.")] = None,
    agent_python: Annotated[str | None, typer.Option(help="The interpreter for the agent.")] = None,
    agent_dir: Annotated[str | None, typer.Option(help="The agent's folder [default: ~/.torchyard].")] = None,
    data_address: Annotated[str | None, typer.Option(help="Its address for training traffic.")] = None,
    interface: Annotated[str | None, typer.Option(help="For NCCL and Gloo, like ib0.")] = None,
    transport: Annotated[Transport | None, typer.Option(help="paramiko or openssh [default: paramiko].")] = None,
    ports: Annotated[str | None, typer.Option(help="Ports that the firewall allows, like 29400-29499.")] = None,
    bandwidth_gbps: Annotated[float | None, typer.Option(help="Speed of its link, in Gbit/s.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="KEY=VALUE, for pools to choose by; repeatable.")] = None,
    local: Annotated[bool, typer.Option("--local", help="This computer: no SSH.")] = False,
    as_json: Json = False,
) -> None:
    """Add a host to the fleet file. The host is not contacted.

    Example: torchyard hosts add gpu-a --address 10.0.0.11 --user lee --label rack=r1
    """
    chosen = command_context(context)
    wanted: dict[str, Any] = {
        "local": local or None,
        "address": address,
        "port": port,
        "user": user,
        "identity_file": identity_file,
        "proxy_jump": proxy_jump,
        "data_address": data_address,
        "interface": interface,
        "transport": transport.value if transport else None,
        "python": python,
        "agent_python": agent_python,
        "agent_dir": agent_dir,
        "ports": ports,
        "bandwidth_gbps": bandwidth_gbps,
        "labels": _labels(label or []) or None,
    }
    entry = {"name": name} | {key: value for key, value in wanted.items() if value is not None}
    host, problems = validate(Host, entry, {}, no_lines)
    if host is None:
        raise UsageError("; ".join(problem.message for problem in problems) + ".", code="bad_host")
    inventory = add_host(chosen.fleet_file, host)
    if as_json:
        print_json(entry)
    else:
        say(f"{name} is in the fleet file {inventory.path} now.")
    for problem in inventory.problems:
        if problem.path.startswith(f"hosts.{name}."):
            remark(problem.printed(str(inventory.path)))
    first = "" if local else f"`torchyard hosts trust {name}` if its host key is new to you, then "
    remark(f"Next: {first}`torchyard hosts check {name}`.")


@app.command("remove")
def remove(context: typer.Context, name: Annotated[str, NAME], yes: Yes = False, as_json: Json = False) -> None:
    """Remove a host from the fleet file. This does not remove the agent from the host: undeploy first.

    Example: torchyard hosts remove gpu-a
    """
    chosen = command_context(context, yes=yes)
    chosen.inventory().host(name)
    question = f"Remove {name} from the fleet? The agent stays on it; `torchyard undeploy {name}` removes it first."
    chosen.confirm_or_exit(question)
    inventory = remove_host(chosen.fleet_file, name)
    forget_facts(chosen.facts_file, name)
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        say(f"{name} is no longer in the fleet file {inventory.path}.")


@app.command("check")
def check(context: typer.Context, names: Annotated[list[str] | None, NAMES] = None, as_json: Json = False) -> None:
    """Log in to hosts, install the agent if it is missing or too old, and print the facts of each host.

    For a cluster, print Slurm's version, its nodes by shape and state, its limits, and what may disturb runs.

    Exit code 0: all hosts are ready. 1: a host is degraded. 3: a host could not be reached or used.

    Example: torchyard hosts check gpu-a gpu-b
    """
    from torchyard_core.cli.views.cluster_details import print_cluster
    from torchyard_core.engines.registry import check_cluster

    chosen = command_context(context)
    inventory = chosen.inventory()
    hosts, clusters = inventory.split(names or [])
    wanted = [*(host.name for host in hosts), *(cluster.name for cluster in clusters)]
    with chosen.fleet(hosts) as fleet, host_progress(wanted) as progress:

        def look(name: str) -> HostCheck:
            looking = partial(progress.doing, name, "reading its hardware and software")
            return check_host(fleet, name, progress=progress.sent, looking=looking)

        def arrived(name: str, found: HostCheck | HostError) -> None:
            progress.arrived(name, found.state)

        checks = fleet.each([host.name for host in hosts], look, arrived)
        on_clusters = [check_cluster(fleet, cluster.name) for cluster in clusters]
        for checked in on_clusters:
            progress.arrived(checked.name, checked.state)
        sync_calendar(chosen, fleet)
    in_order = [found for found in checks.values() if isinstance(found, HostCheck)]
    if as_json:
        print_json([*(found.to_json() for found in in_order), *(found.to_json() for found in on_clusters)])
    else:
        if in_order or not on_clusters:
            _print_checks(in_order)
        for checked in on_clusters:
            print_cluster(checked)
    codes = [*(found.exit_code for found in in_order), *(found.exit_code for found in on_clusters)]
    if code := max(codes, default=0):
        raise typer.Exit(code)


@app.command("audit")
def audit(
    context: typer.Context,
    names: Annotated[list[str] | None, NAMES] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Number of the newest entries [default: all that the agents keep].")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the audit logs of hosts, such as installations of agents, removals of runs, and enforcement.

    Installs no agent. Exit code 1: an agent is too old to answer. 3: a host could not be reached or used.

    Example: torchyard hosts audit gpu-a --last 20
    """
    chosen = command_context(context)
    hosts = chosen.inventory().named(names or [])
    with chosen.fleet(hosts) as fleet, host_progress(host.name for host in hosts) as progress:

        def arrived(name: str, answer: HostAudit | HostError) -> None:
            assert isinstance(answer, HostAudit)
            progress.arrived(name, audit_table.outcome(answer))

        found = fleet.each([host.name for host in hosts], lambda name: audit_of(fleet, name, last), arrived)
    in_order = [answer for answer in found.values() if isinstance(answer, HostAudit)]
    acts = by_time(in_order, last)
    if as_json:
        print_json([host.of(acts).to_json() for host in in_order])
    elif acts:
        table(audit_table.HEADINGS, [audit_table.row(name, act) for name, act in acts])
    else:
        say("The audit logs of these hosts are empty.")
    errors = [host.error for host in in_order if host.error is not None]
    for error in errors:
        remark(f"torchyard: {error.sentence()}")
    # A host without an agent has no audit log.
    if code := max((error.exit_code for error in errors if not isinstance(error, AgentMissing)), default=0):
        raise typer.Exit(code)


@app.command("trust")
def trust(
    context: typer.Context, names: Annotated[list[str], TRUSTED], yes: Yes = False, as_json: Json = False
) -> None:
    """Show the key of each host or bastion, and record it after confirmation.

    Compare the fingerprint with the output of `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the host.

    Example: torchyard hosts trust gpu-a
    """
    from torchyard_core.fleet.ssh import SshDialer

    chosen = command_context(context, yes=yes)
    dialer = SshDialer(chosen.home.known_hosts, terminal_questions())
    answers = [_trusted(chosen, name, dialer, remark if as_json else say) for name in names]
    if as_json:
        print_json(answers[0] if len(answers) == 1 else answers)
    if not all(answer["trusted"] for answer in answers):
        raise typer.Exit(1)


def _trusted(chosen: CommandContext, name: str, dialer: SshDialer, tell: Callable[[str], None]) -> dict[str, Any]:
    """Shows the key of a host, and records it after confirmation. Returns `name`, `fingerprint` and `trusted`."""
    key = show_key(chosen.inventory(), name, dialer)
    answer = {"name": name, "fingerprint": key.fingerprint, "trusted": True}
    if key.is_trusted:
        tell(f"The host key of {name} is trusted already: {key.kind} {key.fingerprint}.")
    else:
        tell(f"{name} ({key.host.place}) shows the host key {key.kind} {key.fingerprint}.")
        if key.has_changed:
            tell(f"On record is another one: {key.kind} {key.on_record}.")
            tell("The host was reinstalled, or the connection is intercepted: ask its owner.")
        if not chosen.confirm(f"Trust this key for {name}?"):
            remark("Nothing was recorded.")
            return {**answer, "trusted": False}
        record_key(key, dialer)
        tell(f"Recorded in {chosen.home.known_hosts}.")
    return answer


def _labels(texts: list[str]) -> dict[str, str]:
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--label {text}: a label is written KEY=VALUE.", code="bad_label")
        labels[key] = value
    return labels


def _print_checks(checks: list[HostCheck]) -> None:
    table(HEADINGS, [row(found) for found in checks])
    for found in checks:
        for problem in found.problems:
            text = problem.sentence()
            is_named = re.search(rf"(?<![\w.-]){re.escape(found.name)}(?![\w-])", problem.message)
            say(as_called(text if is_named else f"{found.name}: {text}"))
        if line := enforcement_line(found):
            say(line)


HEADINGS = ("HOST", "STATE", "AGENT", "CPUS", "MEMORY", "GPUS", "TORCH", "PYTHON")


def row(found: HostCheck) -> list[str]:
    """Returns the cells of a host's row, in the order of HEADINGS."""
    return [
        found.name,
        found.state,
        found.agent["version"] if found.agent else "-",
        "-" if found.cpus is None else str(found.cpus),
        "-" if found.memory_gb is None else memory(found.memory_gb * 1024),
        gpu_summary([gpu["name"] for gpu in found.gpus]) if found.agent else "-",
        found.torch or "-",
        found.python or "-",
    ]


def enforcement_line(found: HostCheck) -> str:
    """Formats the enforcement of a host, or returns an empty string if there is none.

    Example: `gpu-a: bookings are enforced (stop, dry run) on all users' processes; …`
    """
    policy = found.enforcement
    if policy is None or policy.level == "off":
        return ""
    how = f"{policy.level}, dry run" if policy.dry_run else policy.level
    whose = "all users' processes" if policy.of_all else "only its own user's processes"
    now = f"{policy.found} on GPUs that others have booked"
    if not policy.is_fresh:
        now = "no process is ended until a desktop sends the current calendar"
    reported = f" For admins to look into: {clean_name('; '.join(policy.violations))}." if policy.violations else ""
    return f"{found.name}: bookings are enforced ({how}) on {whose}; {now}.{reported}"
