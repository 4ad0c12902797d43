"""`torchyard deploy` and `undeploy`: installation and removal of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchyard_core.app.undeploy_hosts import Removed, undeploy_host
from torchyard_core.cli.context import Yes, command_context
from torchyard_core.cli.output import Json, error_as_json, host_progress, print_json, remark, say
from torchyard_core.errors import HostError

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import DaemonClient

NAMES = typer.Argument(metavar="NAME", help="Names of the fleet file [default: all].", show_default=False)


def deploy(context: typer.Context, names: Annotated[list[str] | None, NAMES] = None, as_json: Json = False) -> None:
    """Install the agent on hosts, or update it. Runs continue, and a newer agent is kept.

    `run` and `hosts check` also install a missing agent and update an old one.

    Example: torchyard deploy gpu-a gpu-b
    """
    chosen = command_context(context)
    hosts = [host.name for host in chosen.inventory().named(names or [])]
    found: dict[str, DaemonClient | HostError] = {}
    with chosen.fleet(chosen.inventory().named(hosts)) as fleet:
        with host_progress(hosts) as progress:

            def put(name: str) -> DaemonClient:
                return fleet.link(name, replace_same_version=True, progress=progress.sent)

            def arrived(name: str, link: DaemonClient | HostError) -> None:
                found[name] = link
                progress.arrived(name, link.state if isinstance(link, HostError) else "running")

            fleet.each(hosts, put, arrived)
        answers = []
        for name in hosts:
            link = found[name]
            if isinstance(link, HostError):
                remark(f"torchyard: {link.sentence()}")
                answers.append({"name": name, "agent": None, "error": error_as_json(link)})
                continue
            agent = {key: link.hello[key] for key in ("version", "sha256", "pid")}
            answers.append({"name": name, "agent": agent, "error": None})
            if not as_json:
                say(f"{name}: agent {agent['version']} ({agent['sha256'][:12]}) running, pid {agent['pid']}")
    if as_json:
        print_json(answers)
    if any(isinstance(link, HostError) for link in found.values()):
        raise typer.Exit(3)


def undeploy(
    context: typer.Context, names: Annotated[list[str] | None, NAMES] = None, yes: Yes = False, as_json: Json = False
) -> None:
    """Remove the agent from hosts with all its data, including logs and outputs of past runs.

    A host with a live run is refused.

    Example: torchyard undeploy gpu-a
    """
    chosen = command_context(context, yes=yes)
    hosts = chosen.inventory().named(names or [])
    names_of_hosts = ", ".join(host.name for host in hosts)
    question = f"Remove the agent, and the logs and outputs of past runs, from {names_of_hosts}?"
    chosen.confirm_or_exit(question, "Nothing was removed.")
    with chosen.fleet(hosts) as fleet, host_progress(host.name for host in hosts) as progress:

        def remove_agent(name: str) -> Removed:
            return undeploy_host(fleet, name, lambda: progress.doing(name, "removing"))

        def arrived(name: str, answer: Removed | HostError) -> None:
            assert isinstance(answer, Removed)
            progress.arrived(name, outcome(answer))

        found = fleet.each([host.name for host in hosts], remove_agent, arrived)
    in_order = [removed for removed in found.values() if isinstance(removed, Removed)]
    gone = {removed.node for removed in in_order if removed.answer}
    for removed in in_order:
        if removed.failed:
            assert removed.error is not None
            remark(f"torchyard: {removed.error.sentence()}")
        elif not as_json:
            say(removed.sentence(gone))
    if as_json:
        print_json([as_json_of(removed) for removed in in_order])
    if code := max((removed.error.exit_code for removed in in_order if removed.failed and removed.error), default=0):
        raise typer.Exit(code)


def outcome(removed: Removed) -> str:
    """Returns the result for the progress display."""
    return "could not be undeployed" if removed.failed else "removed" if removed.answer else "nothing there"


def as_json_of(removed: Removed) -> dict[str, Any]:
    return {
        "name": removed.name,
        "removed": removed.answer is not None,
        "shared_with": removed.answer["shared_with"] if removed.answer else [],
        "error": error_as_json(removed.error) if removed.failed and removed.error else None,
    }
