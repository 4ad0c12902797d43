"""`torchyard deploy` and `undeploy`: installation and removal of the agent."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchyard_core.cli.context import Yes, command_context
from torchyard_core.cli.output import Json, error_as_json, host_progress, print_json, remark, say
from torchyard_core.errors import AgentMissing, AgentRefused, HostError, TorchyardError
from torchyard_core.identity import desktop_identity

if TYPE_CHECKING:
    from torchyard_core.fleet.daemon_client import DaemonClient

NAMES = typer.Argument(metavar="NAME", help="Names of the fleet file [default: all].", show_default=False)
UNDEPLOY_TIMEOUT_S = 60.0
LEAVE_WITHIN_S = 10.0


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
            try:
                link = fleet.link(name, install=False)
                progress.doing(name, "removing")
                return Removed(name, link.hello["node"], _undeploy(link))
            except (HostError, AgentRefused) as error:
                return Removed(name, error=error)

        def arrived(name: str, answer: Removed | HostError) -> None:
            assert isinstance(answer, Removed)
            progress.arrived(name, answer.word())

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
        print_json([removed.to_json() for removed in in_order])
    if code := max((removed.error.exit_code for removed in in_order if removed.failed and removed.error), default=0):
        raise typer.Exit(code)


@dataclass(frozen=True)
class Removed:
    """The result of undeploying one host."""

    name: str
    node: str = ""
    answer: dict[str, Any] | None = None
    error: TorchyardError | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None and not isinstance(self.error, AgentMissing)

    def word(self) -> str:
        """Returns the result for the progress display."""
        return "could not be undeployed" if self.failed else "removed" if self.answer else "nothing there"

    def sentence(self, gone: set[str]) -> str:
        """Returns a line for the user. `gone` contains the nodes undeployed by the same command."""
        if self.answer is None:
            return f"{self.name}: there is no agent; nothing to remove."
        sharing = [node for node in self.answer["shared_with"] if node not in gone]
        if sharing:
            return (
                f"{self.name}: the agent is gone; {self.answer['removed']}/store stays, "
                f"for {', '.join(sharing)} shares this home."
            )
        return f"{self.name}: the agent and all of ours in {self.answer['removed']} are gone."

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "removed": self.answer is not None,
            "shared_with": self.answer["shared_with"] if self.answer else [],
            "error": error_as_json(self.error) if self.failed and self.error else None,
        }


def _undeploy(link: DaemonClient) -> dict[str, Any]:
    """Undeploys one host. Returns the daemon's answer after the daemon has exited."""
    left = threading.Event()
    link.on_close(left.set)
    answer: dict[str, Any] = link.call("undeploy", {"by": desktop_identity()}, UNDEPLOY_TIMEOUT_S)
    left.wait(LEAVE_WITHIN_S)
    return answer
