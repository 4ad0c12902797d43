"""The use case "start a sweep": check topology and search file, launch the coordinator, and record the sweep."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torchyard_core.app.desktop import Desktop
from torchyard_core.app.launch_run import InvalidTopology, LaunchCallbacks, LaunchRun
from torchyard_core.errors import RunFailed
from torchyard_core.launch.calendar_port import BookingOptions
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.sweeps.sweep_launch import SweepLaunch
from torchyard_core.problems import Problem, has_errors
from torchyard_core.sweeps.search_file import SearchFile
from torchyard_core.topology.file import TopologyFile


class InvalidSearch(RunFailed):
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
        booking: BookingOptions | None = None,
        arguments: Sequence[str] = (),
        study: str = "",
        continues: str = "",
        same_code_as: str | None = None,
        verb: str = "sweep",
    ):
        """Creates the use case.

        Args:
            study: The study of an ended sweep to continue, as in `sweep_messages.Sweep`.
            continues: The ID of that sweep.
            same_code_as: The hash that the program's files must have; None accepts any code.
            verb: The command that is repeated in hints.
        """
        super().__init__(desktop, source, callbacks, name=name, booking=booking, arguments=arguments)
        self._search = search
        self._study = study
        self._continues = continues
        self._same_code_as = same_code_as
        self._verb = verb

    def prepare(self) -> None:
        """Checks topology and search file. Raises InvalidTopology, InvalidSearch, or RunFailed for a missing secret."""
        source, search = self._source, self._search.search
        self.problems = tuple(source.check(self.desktop.fleet.known()))
        if source.topology is None or has_errors(self.problems):
            raise InvalidTopology(self.problems, source.source)
        of_search, of_topology = self._search.check(source.topology), self._search.check_topology(source)
        if search is None or has_errors((*of_search, *of_topology)):
            raise InvalidSearch(of_search, self._search.source, of_topology, source.source)
        topology = source.topology
        self.callbacks.on_check(Check("topology", "", True, topology.name))
        name = self._name or search.name or topology.name
        create = partial(
            SweepLaunch, search=search, study=self._study, continues=self._continues, same_code_as=self._same_code_as
        )
        arguments = self._arguments or (source.source,)
        self._make_launch(source, name, topology.program.secrets, arguments, create=create, verb=self._verb)
