"""The use case "start a sweep": check topology and search file, launch the coordinator, and record the sweep."""

from __future__ import annotations

from collections.abc import Sequence

from torchyard_core.app.desktop import Desktop
from torchyard_core.app.launch_run import LaunchCallbacks, LaunchRun
from torchyard_core.errors import InvalidFile
from torchyard_core.launch.calendar_interface import BookingOptions
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.sweeps.sweep_launch import EndedSweep, SweepRequest
from torchyard_core.problems import Problem, has_errors
from torchyard_core.sweeps.model import Search
from torchyard_core.sweeps.search_file import SearchFile
from torchyard_core.topology.file import TopologyFile


class InvalidSearch(InvalidFile):
    """Raised when a search file has errors, or a topology cannot be used with its search file.

    `problems` holds the problems of the search, and `of_topology` those of the topology.
    """

    def __init__(
        self, problems: Sequence[Problem], source: str, of_topology: Sequence[Problem] = (), topology_source: str = ""
    ):
        self.problems = tuple(problems)
        self.of_topology = tuple(of_topology)
        lines = [problem.printed(topology_source) for problem in self.of_topology]
        lines += [problem.printed(source) for problem in self.problems]
        super().__init__("\n".join(lines), code="search_problems", hint="Correct the file, then start it again.")


def valid_search(file: SearchFile, source: TopologyFile) -> Search:
    """Returns the search in a search file.

    Raises InvalidSearch if the search has errors, or if the topology cannot be used with it.
    """
    assert source.topology is not None
    of_search, of_topology = file.check(source.topology), file.check_topology(source)
    if file.search is None or has_errors((*of_search, *of_topology)):
        raise InvalidSearch(of_search, file.source, of_topology, source.source)
    return file.search


class LaunchSweep(LaunchRun):
    """Starts a sweep of a topology."""

    def __init__(
        self,
        desktop: Desktop,
        source: TopologyFile,
        search: SearchFile,
        callbacks: LaunchCallbacks | None = None,
        *,
        name: str = "",
        on: str | None = None,
        booking: BookingOptions | None = None,
        arguments: Sequence[str] = (),
        ended: EndedSweep | None = None,
        verb: str = "sweep",
    ):
        """Creates the use case.

        Args:
            on: The cluster of the fleet on which all trials run. By default, the topology determines the hosts.
            ended: The ended sweep to continue; None for a new sweep.
            verb: The command that is named in hints, such as `sweep`.
        """
        super().__init__(desktop, source, callbacks, name=name, on=on, booking=booking, arguments=arguments)
        self._search = search
        self._ended = ended
        self._verb = verb

    def prepare(self) -> None:
        """Checks topology and search file. Raises InvalidSearch, and the errors of `LaunchRun.prepare`."""
        topology = self._check_topology()
        source, search = self._source, valid_search(self._search, self._source)
        self.callbacks.on_check(Check("topology", "", True, topology.name))
        name = self._name or search.name or topology.name
        sweep = SweepRequest(search, self._ended)
        arguments = self._arguments or (source.source,)
        self._make_launch(source, name, topology.program.secrets, arguments, sweep=sweep, verb=self._verb)
