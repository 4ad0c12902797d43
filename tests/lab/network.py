"""The network of a lab: its namespaces, its cables and its switch.

The switch is a bridge in its own namespace, because a bridge in the root namespace can drop frames if
`bridge-nf-call-iptables` is 1. The desktop is connected to the switch like every host.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tests.lab.needs import SEARCH_PATH, LabBroken
from tests.lab.subnet import Subnet, remove_tagged

BURST = ("burst", "128kb", "latency", "200ms")


class Network:
    """A lab's part of the kernel's network stack, created by `build` and removed by `remove`."""

    def __init__(self, subnet: Subnet):
        self._subnet = subnet
        self._switch = f"{subnet.tag}-switch"
        self._ports: dict[str, str] = {}

    def namespace(self, host: str) -> str:
        """Returns the name of the host's network namespace, as `ip netns` lists it."""
        return f"{self._subnet.tag}-{host}"

    def build(self, addresses: dict[str, str]) -> None:
        """Creates the switch, and for each host (name → address) a namespace with a connected interface eth0."""
        self._ports = {host: f"port{index}" for index, host in enumerate(addresses)}
        desktop, length = self._subnet.tag, self._subnet.network.prefixlen
        namespaces = [self._switch, *map(self.namespace, addresses)]
        _ip(*(f"netns add {namespace}" for namespace in namespaces))
        _without_ipv6_chatter(namespaces)
        _ip(
            f"link add {desktop} type veth peer name desktop netns {self._switch}",
            *(
                f"link add {port} netns {self._switch} type veth peer name eth0 netns {self.namespace(host)}"
                for host, port in self._ports.items()
            ),
            f"address add {self._subnet.address(1)}/{length} dev {desktop}",
            f"link set {desktop} up",
        )
        _ip(
            "link add switch type bridge mcast_snooping 0",
            "link set switch up",
            *(f"link set {port} master switch up" for port in ("desktop", *self._ports.values())),
            namespace=self._switch,
        )
        for host, address in addresses.items():
            _ip(
                "link set lo up",
                f"address add {address}/{length} dev eth0",
                "link set eth0 up",
                namespace=self.namespace(host),
            )

    def remove(self) -> None:
        """Removes the network, whether or not its creation was completed; its processes must have exited."""
        remove_tagged(self._subnet.tag)

    def cut(self, host: str) -> None:
        """Unplugs the host from the switch: the host keeps its address and receives nothing, not even a reset."""
        _ip(f"link set {self._ports[host]} down", namespace=self._switch)

    def mend(self, host: str) -> None:
        """Plugs the host in again."""
        _ip(f"link set {self._ports[host]} up", namespace=self._switch)

    def shape(self, host: str, rate: str, after: str | None = None) -> None:
        """Limits the host's cable to `rate` in each direction, after `after` bytes.

        Both values are in tc's notation, such as 200mbit and 4mb.
        """
        burst = BURST if after is None else ("burst", after, "limit", "256kb")
        for namespace, device in self._ends(host):
            _run(["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, *burst])

    def unshape(self, host: str) -> None:
        """Removes the rate limit of the host's cable, if any."""
        for namespace, device in self._ends(host):
            if " tbf " in _run(["tc", "-n", namespace, "qdisc", "show", "dev", device]):
                _run(["tc", "-n", namespace, "qdisc", "delete", "dev", device, "root"])

    def _ends(self, host: str) -> list[tuple[str, str]]:
        return [(self.namespace(host), "eth0"), (self._switch, self._ports[host])]


def _without_ipv6_chatter(namespaces: Sequence[str]) -> None:
    """Disables IPv6 on new interfaces, because byte counters would include the kernel's own IPv6 traffic."""
    commands = [
        f"nsenter --net=/run/netns/{namespace} sh -c 'echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6'"
        for namespace in namespaces
    ]
    # A kernel without IPv6 lacks this setting.
    _run(["sh", "-c", "test -d /proc/sys/net/ipv6 || exit 0; " + " && ".join(commands)])


def _ip(*lines: str, namespace: str | None = None) -> None:
    """Runs many `ip` commands in a single process."""
    inside = ["-n", namespace] if namespace else []
    _run(["ip", *inside, "-batch", "-"], "\n".join(lines) + "\n")


def _run(command: Sequence[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, env={"PATH": SEARCH_PATH}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabBroken(f"`{' '.join(command)}` failed: {done.stderr.strip()}\n{text}".strip())
    return done.stdout
