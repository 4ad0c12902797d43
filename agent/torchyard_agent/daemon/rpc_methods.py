"""The methods of the daemon that desktops call. The methods are documented in docs/protocol.md."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Any, Callable

from torchyard_agent.daemon import audit, run_logs, run_outputs
from torchyard_agent.daemon.bookings import Bookings
from torchyard_agent.daemon.network_probe import NetworkProbe
from torchyard_agent.daemon.run_models import RunModels, archive_of
from torchyard_agent.daemon.runs import Runs
from torchyard_agent.daemon.subscriptions import Telemetry, follow_state
from torchyard_agent.daemon.undeploy import remove_everything
from torchyard_agent.daemon.uploads import Uploads
from torchyard_agent.network_addresses import address_towards, interface_of
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.telemetry import host_facts, training_python
from torchyard_agent.unix_socket_rpc import Connection, Method

Params = dict[str, Any]

LAUNCH_DEADLINE_S = 20.0
"""Longest time in seconds that an exiting daemon waits for prepared launches, which depend on its connections."""


class Methods:
    """The table of the daemon's methods, and the objects that implement them."""

    def __init__(self, agent_dir: str, hello: Params, runs: Runs, telemetry: Telemetry, retire: Callable[[], None]):
        self._agent_dir = agent_dir
        self._hello = hello
        self._identity = os.urandom(16).hex()
        self._runs = runs
        self._telemetry = telemetry
        self._retire = retire
        self._network_probe = NetworkProbe()
        self._uploads = Uploads(agent_dir, str(hello["node"]))
        self._models = RunModels(runs, archive_of(agent_dir, hello))
        self.bookings = Bookings(agent_dir, str(hello["node"]), runs, telemetry)

    def table(self) -> dict[str, Method]:
        methods: dict[str, Method] = {
            "hello": self.hello,
            "retire": self.retire,
            "undeploy": self.undeploy,
            "host.facts": self.host_facts,
            "host.pythons": self.host_pythons,
            "host.route": self.host_route,
            "host.preflight": self.host_preflight,
            **self._network_probe.table(),
            "telemetry.sample": self.telemetry_sample,
            "telemetry.subscribe": self.telemetry_subscribe,
            "telemetry.unsubscribe": self.telemetry_unsubscribe,
            **self._uploads.table(),
            **self.bookings.table(),
            "run.warm": self.run_warm,
            "run.prepare": self.run_prepare,
            "run.renew": partial(self._forward, "renew"),
            "run.start": self.run_start,
            "run.join": self.run_join,
            "run.invite": partial(self._forward, "invite"),
            "run.hold": partial(self._forward, "hold"),
            "run.grow": partial(self._forward, "grow"),
            "run.withdraw": partial(self._forward, "withdraw"),
            "run.stop": partial(self._forward, "stop"),
            "run.abort": partial(self._forward, "abort"),
            "run.list": self.run_list,
            "run.show": self.run_show,
            "run.remove": self.run_remove,
            "state.subscribe": self.state_subscribe,
            "logs.list": self.logs_list,
            "logs.read": self.logs_read,
            "files.list": self.files_list,
            "files.read": self.files_read,
            **self._models.table(),
        }
        return audit.watch(self._agent_dir, str(self._hello["node"]), methods)

    async def hello(self, connection: Connection, params: Params) -> Any:
        """Returns the agent's version, protocol, sha256, pid and node."""
        return self._hello

    async def retire(self, connection: Connection, params: Params) -> Any:
        """Ends this daemon so that a newer one can replace it.

        Runs continue, because they depend only on their keepers.
        """
        await self._runs.wait_for_launches(LAUNCH_DEADLINE_S)
        asyncio.get_running_loop().call_soon(self._retire)
        return {}

    async def undeploy(self, connection: Connection, params: Params) -> Any:
        """Removes the agent from this host and ends the daemon. Raises RpcError if a run is alive."""
        alive = [run_id for run_id in self._runs.ids() if await self._runs.is_running(run_id)]
        if alive:
            raise RpcError(
                f"the run {alive[0]} is alive there; undeploying would end it",
                "run_alive",
                "Stop it first.",
                run_id=alive[0],
            )
        removing = partial(remove_everything, self._agent_dir, str(self._hello["node"]))
        left = await asyncio.get_running_loop().run_in_executor(None, removing)
        asyncio.get_running_loop().call_soon(self._retire)
        return left

    async def host_facts(self, connection: Connection, params: Params) -> Any:
        finding = partial(host_facts.host_facts, params.get("python"), self._agent_dir)
        facts = await asyncio.get_running_loop().run_in_executor(None, finding)
        return {**facts, "bookings": self.bookings.summary(), "daemon": self._identity}

    async def host_pythons(self, connection: Connection, params: Params) -> Any:
        """Returns the Python interpreters of this host that training programs may use."""
        searching = partial(training_python.search, params.get("python"))
        return await asyncio.get_running_loop().run_in_executor(None, searching)

    async def host_route(self, connection: Connection, params: Params) -> Any:
        """Returns the address and interface through which this host reaches another host."""
        address = address_towards(str(params["to"]))
        return {"address": address, "interface": interface_of(address)}

    async def host_preflight(self, connection: Connection, params: Params) -> Any:
        # The preflight module is imported here because only a launch needs it.
        from torchyard_agent.daemon.preflight import preflight

        return await preflight(self._runs, connection, params)

    async def telemetry_sample(self, connection: Connection, params: Params) -> Any:
        return await self._telemetry.sample()

    async def telemetry_subscribe(self, connection: Connection, params: Params) -> Any:
        self._telemetry.watch(connection, float(params.get("interval_s", 1.0)))
        return {}

    async def telemetry_unsubscribe(self, connection: Connection, params: Params) -> Any:
        self._telemetry.unwatch(connection)
        return {}

    async def run_warm(self, connection: Connection, params: Params) -> Any:
        """Starts interpreters for a launch. They exit if the connection ends before `run.prepare`."""
        connection.on_close.append(partial(self._runs.end_warm, str(params["run_id"])))
        return await self._runs.warm(params)

    async def run_prepare(self, connection: Connection, params: Params) -> Any:
        """Reserves the run's resources on this host. They are released if the connection ends before the run begins."""
        connection.on_close.append(partial(self._runs.abort_unbegun, str(params["run_id"])))
        return await self._runs.prepare(params)

    async def run_start(self, connection: Connection, params: Params) -> Any:
        run_id = params["run_id"]
        with self._runs.launching():
            answer = await self._runs.begin("start", params)
            await self.bookings.update_keeper(run_id)
        return answer

    async def run_join(self, connection: Connection, params: Params) -> Any:
        return await self._runs.begin("join", params)

    async def _forward(self, method: str, connection: Connection, params: Params) -> Any:
        return await self._runs.forward(method, params)

    async def run_list(self, connection: Connection, params: Params) -> Any:
        return await self._runs.list()

    async def run_show(self, connection: Connection, params: Params) -> Any:
        return await self._runs.show(params["run_id"])

    async def run_remove(self, connection: Connection, params: Params) -> Any:
        await self._runs.remove(params["run_id"])
        return {}

    async def state_subscribe(self, connection: Connection, params: Params) -> Any:
        """Sends `state` notifications, beginning after the journal entry `seen` ([epoch, sequence])."""
        run_id = params["run_id"]
        self._runs.folder(run_id)
        following = follow_state(connection, self._runs, run_id, params.get("seen"))
        connection.keep(asyncio.get_running_loop().create_task(following))
        return {}

    async def logs_list(self, connection: Connection, params: Params) -> Any:
        return run_logs.list_logs(self._runs.folder(params["run_id"]))

    async def logs_read(self, connection: Connection, params: Params) -> Any:
        run_id = params["run_id"]
        folder = self._runs.folder(run_id)
        await self._runs.is_open(run_id)
        return await run_logs.read_log(folder, params, self._runs.logs_end(run_id))

    async def files_list(self, connection: Connection, params: Params) -> Any:
        folder = self._runs.folder(params["run_id"])
        listing = partial(run_outputs.list_files, folder, str(params.get("pattern", "")), self._agent_dir)
        return await asyncio.get_running_loop().run_in_executor(None, listing)

    async def files_read(self, connection: Connection, params: Params) -> Any:
        folder = self._runs.folder(params["run_id"])
        return run_outputs.read_file(folder, str(params["path"]), int(params.get("offset", 0)))
