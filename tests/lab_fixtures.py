"""Fixtures that provide lab hosts and the desktops that use them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.agent.fake_nvml import FakeGpu
from tests.fork_server import ForkServer
from tests.lab import Desktop, Lab, LabBroken, LabUnavailable
from tests.lab.commands import Commands
from tests.lab.hosts.agent import InstalledAgent
from tests.lab.hosts.gpus import give_gpus
from tests.lab.needs import require
from tests.lab.slurm import SlurmCluster

LabFactory = Callable[..., Lab]
ClusterFactory = Callable[..., SlurmCluster]


class ThreeHosts:
    """Provides three plain hosts for the session. If a test destroys one of them, all three are created again."""

    def __init__(self, directory: Path, agent: InstalledAgent):
        self._directory = directory
        self._agent = agent
        self._lab: Lab | None = None
        self._made = 0

    def get(self, *, bare: bool) -> Lab:
        """Returns the lab with three live hosts, on which the agent's files are installed unless `bare` is set."""
        if self._lab is None or not self._lab.whole:
            self.close()
            self._made += 1
            self._lab = Lab(3, directory=self._directory / str(self._made)).open()
        if not bare:
            self._agent.put(self._lab)
        return self._lab

    def clean(self) -> None:
        """Restores the hosts; if that fails, discards all of them and raises LabBroken."""
        if self._lab is None or not self._lab.whole:
            return
        try:
            for host in self._lab.hosts:
                host.clean()
        except LabBroken:
            self.close()
            raise

    def close(self) -> None:
        """Removes the hosts."""
        if self._lab is not None:
            self._lab.close()
            self._lab = None


@pytest.fixture(scope="session")
def _agent(tmp_path_factory: pytest.TempPathFactory) -> InstalledAgent:
    return InstalledAgent(tmp_path_factory.mktemp("agent") / "agent")


@pytest.fixture
def lab(tmp_path: Path, _agent: InstalledAgent, request: pytest.FixtureRequest) -> Iterator[LabFactory]:
    """Returns a function that creates labs for one test: `lab(2)`, or `lab(hosts=[HostSpec("gpu-a")],
    shared_home=True)`.

    The hosts have the agent's files, as after a deploy, unless the test uses the fixture `bare_hosts`.
    """
    yield from _factory(tmp_path, None if "bare_hosts" in request.fixturenames else _agent)


@pytest.fixture(scope="module")
def module_lab(tmp_path_factory: pytest.TempPathFactory, _agent: InstalledAgent) -> Iterator[LabFactory]:
    """Returns a function that creates labs, which exist until all tests of the module have ended."""
    yield from _factory(tmp_path_factory.mktemp("lab"), _agent)


@pytest.fixture(scope="module")
def bare_module_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabFactory]:
    """Returns a function like that of `module_lab`, for hosts without the agent's files."""
    yield from _factory(tmp_path_factory.mktemp("lab"), None)


@pytest.fixture(scope="module")
def gpu_lab(module_lab: LabFactory) -> Lab:
    """Returns a lab of two hosts with two unused fake GPUs each (`GPU-gpu-a-0`, …), for all tests of a module."""
    made = module_lab(2)
    for host in made.hosts:
        names = [f"GPU-{host.name}-{number}" for number in range(2)]
        give_gpus(host, [FakeGpu(name, memory_used_mb=0, utilisation=0) for name in names])
    return made


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[ClusterFactory]:
    """A factory of Slurm clusters for one test, such as `make_cluster(nodes=2, database=True)`."""
    yield from cluster_factories(tmp_path)


@pytest.fixture(scope="module")
def _module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    for make in cluster_factories(tmp_path_factory.mktemp("slurm")):
        yield make(users=("lee", "kim"))


@pytest.fixture
def cluster(_module_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """A Slurm cluster of three nodes, which all tests of a module share and which is cleaned after each test."""
    yield _module_cluster
    _module_cluster.clean()


def cluster_factories(directory: Path) -> Iterator[ClusterFactory]:
    with ExitStack() as stack:
        made = 0

        def make(**options: Any) -> SlurmCluster:
            nonlocal made
            made += 1
            try:
                return stack.enter_context(SlurmCluster(directory / f"cluster-{made}", **options))
            except LabUnavailable as why:
                unavailable(why)
                raise

        yield make


@pytest.fixture(scope="session")
def _three_hosts(tmp_path_factory: pytest.TempPathFactory, _agent: InstalledAgent) -> Iterator[ThreeHosts]:
    hosts = ThreeHosts(tmp_path_factory.mktemp("lab3"), _agent)
    yield hosts
    hosts.close()


@pytest.fixture
def lab3(needs_lab: None, _three_hosts: ThreeHosts, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Yields three plain hosts. To save time, all tests share them; they are cleaned after each test.

    The hosts have the agent's files, as after a deploy; tests of the first connection to a host use the fixture
    `bare_hosts`.
    """
    yield _three_hosts.get(bare="bare_hosts" in request.fixturenames)
    _three_hosts.clean()


@pytest.fixture
def bare_hosts() -> None:
    """Makes `lab3` and `lab` provide hosts without the agent's files."""


@pytest.fixture(scope="session")
def _commands() -> Iterator[Commands]:
    commands = Commands()
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def torch_for_hosts() -> Iterator[ForkServer]:
    """Yields a fork server that has imported torch, for `LabHost.fork_scripts_from` and programs on this machine.

    Its programs compute in one thread. Those that set more do not wait in busy loops.
    """
    own = {"PYTHONPATH": "", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    fork_server = ForkServer({**os.environ, **own}, "tests.lab.torch_imports")
    yield fork_server
    fork_server.close()


@pytest.fixture
def warm_python(lab3: Lab, torch_for_hosts: ForkServer) -> str:
    """Returns the path, on the hosts of `lab3`, of a `python` that has imported torch and scikit-learn.

    Tests use it with `desktop.use(lab3, python=warm_python)`, which saves four seconds of CPU time per process.
    """
    (path,) = {host.fork_scripts_from(torch_for_hosts) for host in lab3.hosts}
    return path


@pytest.fixture
def desktop(lab3: Lab, tmp_path: Path, _commands: Commands) -> Iterator[Desktop]:
    """Returns a desktop with the hosts of `lab3` in its fleet file and invented bandwidths in its cache."""
    computer = Desktop(tmp_path / "desktop", lab3, commands=_commands, knows_bandwidths=True)
    yield computer
    computer.close()


@pytest.fixture
def make_desktop(tmp_path: Path, _commands: Commands) -> Iterator[Callable[..., Desktop]]:
    """Returns a function that creates desktops, such as `make_desktop(lab(2), python=None)`."""
    made: list[Desktop] = []

    def make(lab: Lab | None = None, **fleet: Any) -> Desktop:
        directory = tmp_path / f"desktop-{len(made)}"
        made.append(Desktop(directory, lab, commands=_commands, knows_bandwidths=True, **fleet))
        return made[-1]

    yield make
    for computer in made:
        computer.close()


@pytest.fixture
def needs_lab() -> None:
    """Skips the test if the lab is not available; fails the test in CI instead."""
    try:
        require()
    except LabUnavailable as why:
        unavailable(why)


def unavailable(why: LabUnavailable) -> None:
    """Skips the test; fails it instead if CI=true."""
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(str(why))
    pytest.skip(str(why))


def _factory(directory: Path, agent: InstalledAgent | None) -> Iterator[LabFactory]:
    with ExitStack() as stack:
        made = 0

        def make(*arguments: Any, **options: Any) -> Lab:
            nonlocal made
            made += 1
            try:
                opened = stack.enter_context(Lab(*arguments, directory=directory / f"lab-{made}", **options))
            except LabUnavailable as why:
                unavailable(why)
                raise
            if agent is not None:
                agent.put(opened)
            return opened

        yield make
