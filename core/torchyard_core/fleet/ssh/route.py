"""Determines the routes to hosts from the fleet file and `~/.ssh/config`. Opens no connections."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchyard_core.errors import LoginRefused, Unreachable
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh.ssh_config import Settings
from torchyard_core.home import expand_user
from torchyard_core.next_steps import SetHostField

SSH_PORT = 22
CONNECT_TIMEOUT_S = 15.0
ALIVE_INTERVAL_S = 15
ALIVE_COUNT = 3
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
MAX_HOPS = 32
"""Maximum number of jump hosts on a route. A longer route is treated as a loop."""

Lookup = Callable[[str], Settings]


@dataclass(frozen=True)
class Route:
    """One login on the way to a host. `via` is the previous login. Equal routes can share a login."""

    name: str = field(compare=False)
    """The name for messages: the host's name in the fleet, or the bastion's name as written in the configuration."""
    address: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str | None = None
    """Socket of the ssh-agent. None means the socket in the environment, and an empty string means no ssh-agent."""
    via: Route | None = None
    proxy_command: str = ""
    """The ProxyCommand with its tokens expanded."""
    proxy_template: str = field(default="", compare=False)
    """The ProxyCommand without expansion, which is usually equal for all hosts behind the same gateway."""
    key_name: str = ""
    """Name of the host in known-hosts files."""
    is_bastion: bool = field(default=False, compare=False)
    """Whether this is a login on the way to another host."""
    batch: bool = field(default=False, compare=False)
    """Whether prompts are forbidden (BatchMode)."""
    refused_methods: frozenset[str] = frozenset()
    """Authentication methods that the configuration disables, by their SSH names."""
    connect_timeout_s: float = field(default=CONNECT_TIMEOUT_S, compare=False)
    alive_interval_s: int = field(default=ALIVE_INTERVAL_S, compare=False)
    """Seconds of silence before a keepalive request."""
    alive_count: int = field(default=ALIVE_COUNT, compare=False)

    @property
    def place(self) -> str:
        return f"{_bracketed(self.address)}:{self.port}"

    @property
    def hops(self) -> tuple[Route, ...]:
        """All logins on the way to the host, the nearest first and this login last."""
        return (*(self.via.hops if self.via else ()), self)

    @property
    def throttle_key(self) -> object:
        """The key of the login throttle: the address of the sshd, or the gateway of a ProxyCommand."""
        return self.proxy_template or (self.address, self.port, self.via)


def route_to(host: Host, lookup: Lookup) -> Route:
    """Returns the route to a host. The fleet file takes precedence over `~/.ssh/config`, which overrides the defaults.

    Raises:
        Unreachable: The jump hosts form a loop, or the configuration has a malformed jump host or number.
        LoginRefused: The user name is unknown.
        FileProblem: The configuration is malformed.
    """
    return _route(host, lookup, host.proxy_jump, ())


def _route(host: Host, lookup: Lookup, jump: str | None, seen: tuple[tuple[str, int, str], ...]) -> Route:
    """Returns the route to a host through the given jump hosts.

    Args:
        host: The host or bastion.
        lookup: Returns the settings of `~/.ssh/config` for a host name.
        jump: A ProxyJump value; None means the value in the configuration.
        seen: The logins that follow on the way to the final host, for the detection of loops.
    """
    alias = host.address or host.name
    found = lookup(alias)
    user = host.user or _one(found, "user") or _own_login(host.name)
    address = _expand(_one(found, "hostname") or alias, {"h": alias, "n": alias})
    port = host.port or _number(host.name, found, "port", SSH_PORT)
    tokens = {"h": address, "p": str(port), "r": user, "n": alias}
    if (address, port, user) in seen or len(seen) > MAX_HOPS:
        circle = " through ".join(f"{place}:{number}" for place, number, _ in (*seen, (address, port, user)))
        raise Unreachable(
            host.name,
            f"the jumps to {host.name} form a circle: {circle}.",
            hint="Correct ProxyJump in ~/.ssh/config (`ProxyJump none` for the bastion itself) or `proxy_jump` in "
            "the fleet file.",
        )
    template = _one(found, "proxycommand") if jump is None else ""
    if jump is None:
        # As in ssh(1), the first of ProxyJump and ProxyCommand in the configuration applies.
        keys = list(found)
        jump = _one(found, "proxyjump")
        if jump and template and keys.index("proxyjump") > keys.index("proxycommand"):
            jump = ""
    template = "" if jump or template.lower() == "none" else template
    alias_of_key = _one(found, "hostkeyalias")
    identities = [host.identity_file] if host.identity_file else _all(found, "identityfile")
    route = Route(
        name=host.name,
        address=address,
        port=port,
        user=user,
        identity_files=tuple(_path(path, tokens) for path in identities if path.lower() != "none"),
        identities_only=_yes(found, "identitiesonly"),
        agent=_agent(_one(found, "identityagent"), tokens),
        proxy_command=_expand(template, tokens),
        proxy_template=template,
        key_name=alias_of_key or (address.lower() if port == SSH_PORT else f"[{address.lower()}]:{port}"),
        is_bastion=bool(seen),
        batch=_yes(found, "batchmode"),
        refused_methods=frozenset(_refused_methods(found)),
        connect_timeout_s=_number(host.name, found, "connecttimeout", 0) or CONNECT_TIMEOUT_S,
        alive_interval_s=_number(host.name, found, "serveraliveinterval", 0) or ALIVE_INTERVAL_S,
        alive_count=max(1, _number(host.name, found, "serveralivecountmax", ALIVE_COUNT)),
    )
    if not jump or jump.lower() == "none":
        return route
    *before, last = [part.strip() for part in _expand(jump, tokens).split(",") if part.strip()]
    # As in ssh(1), the first jump host in the list is reached through the jump hosts of its own ProxyJump.
    via = _route(jump_host(host.name, last), lookup, ",".join(before) or None, (*seen, (address, port, user)))
    return replace(route, via=via)


def _own_login(name: str) -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError) as error:  # In a container, the user ID may have no user name.
        message = f"there is no user name for the login on {name}: this computer's user has none."
        hint = SetHostField(name, "user")
        raise LoginRefused(name, message, hint=hint) from error


def jump_host(name: str, jump: str) -> Host:
    """Parses one jump host of ProxyJump (ssh_config(5)): `user@address:port` or `[address]:port`.

    The prefix `ssh://`, the user and the port are optional. Raises Unreachable for the host `name` if the jump host has
    another form.
    """
    match = re.fullmatch(r"(?:ssh://)?(?:(.+)@)?(\[[^\]]+\]|[^:\[\]]+)(?::(\d+))?/?", jump)
    if not match:
        form = "Write it as user@address:port, in ProxyJump of ~/.ssh/config or in the fleet file."
        hint = (form, SetHostField(name, "proxy_jump"))
        raise Unreachable(name, f"the jump `{jump}` on the way to {name} is malformed.", hint=hint)
    user, address, port = match.groups()
    address = address.strip("[]")
    # The host is not validated, because an IPv6 address is not a valid host name in the fleet file.
    return Host.model_construct(name=address, address=address, user=user, port=int(port) if port else None)


def as_host(route: Route) -> Host:
    """Returns the last login of a route, usually a bastion, as a Host with the same login and the same jump hosts."""
    before = ",".join(f"{hop.user}@{_bracketed(hop.name)}:{hop.port}" for hop in route.hops[:-1])
    return Host.model_construct(
        name=route.name, address=route.name, user=route.user, port=route.port, proxy_jump=before or "none"
    )


def existing_identities(route: Route) -> list[Path]:
    """Returns the key files of a route that exist.

    If the route has no configured key files, the files with default names in ~/.ssh are returned.
    """
    named = [Path(path) for path in route.identity_files]
    default = [expand_user("~/.ssh") / name for name in DEFAULT_KEYS]
    return [path for path in named or default if path.is_file() or path.with_name(f"{path.name}.pub").is_file()]


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _one(found: Settings, key: str) -> str:
    value = found.get(key) or ""
    return value if isinstance(value, str) else value[0]


def _all(found: Settings, key: str) -> list[str]:
    value = found.get(key) or []
    return [value] if isinstance(value, str) else value


def _yes(found: Settings, key: str) -> bool:
    return _one(found, key).lower() in ("yes", "true")


def _number(name: str, found: Settings, key: str, default: int) -> int:
    text = _one(found, key)
    if not text:
        return default
    match = re.fullmatch(r"(\d+)([smhSMH]?)", text)
    if not match:
        raise Unreachable(
            name, f"~/.ssh/config has `{text}` for {key} of {name}, which is not a number.", hint="Correct it there."
        )
    return int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2].lower()]


def _refused_methods(found: Settings) -> Iterator[str]:
    for key, method in (
        ("pubkeyauthentication", "publickey"),
        ("kbdinteractiveauthentication", "keyboard-interactive"),
        ("challengeresponseauthentication", "keyboard-interactive"),
        ("passwordauthentication", "password"),
    ):
        if _one(found, key).lower() in ("no", "false"):
            yield method


def _agent(text: str, tokens: Mapping[str, str]) -> str | None:
    if not text or text == "SSH_AUTH_SOCK":
        return None
    if text.lower() == "none":
        return ""
    return os.environ.get(text[1:], "") if re.fullmatch(r"\$\w+", text) else _path(text, tokens)


def _path(text: str, tokens: Mapping[str, str]) -> str:
    return str(expand_user(_expand(text, tokens)))


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    """Expands the tokens of ssh_config(5) and `${VARIABLE}`. Unknown tokens are kept."""
    known = {"%": "%", "d": str(expand_user("~")), "i": str(os.getuid()) if hasattr(os, "getuid") else ""}

    def of(match: re.Match[str]) -> str:
        token, variable = match.groups()
        if variable:
            return os.environ.get(variable, match[0])
        if token in ("u", "l", "L"):
            name = getpass.getuser() if token == "u" else socket.gethostname()
            return name.split(".")[0] if token == "L" else name
        return {**known, **tokens}.get(token, match[0])

    return re.sub(r"%(.)|\$\{(\w+)\}", of, text)
