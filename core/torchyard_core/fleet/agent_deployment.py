"""Deploys the agent and connects to its daemon, over one channel and with one interpreter on the host.

The channel runs `/bin/sh` instead of the login shell, which may be csh or print text. The shell runs the first
interpreter that is new enough. The interpreter reads the bootstrap from stdin, and the archive if the host does not
have it. It then starts the daemon if none is running, and becomes the bridge to the daemon. Output before a line with
the nonce is used only in error messages.
"""

from __future__ import annotations

import json
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from torchyard_agent.protocol import PROTOCOL, paths
from torchyard_agent.protocol.version_order import version_order
from torchyard_core.errors import (
    AgentFailed,
    AgentMissing,
    AgentRefused,
    HostError,
    NoPython,
    TorchyardError,
    Unreachable,
)
from torchyard_core.fleet.agent_archive import Archive
from torchyard_core.fleet.channel import Channel, ProcessChannel
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.fleet.host_fields import Transport
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.response_schemas import FIRST_ANSWER, find_mismatch
from torchyard_core.fleet.ssh import SshDialer
from torchyard_core.fleet.ssh.openssh import explain, open_ssh
from torchyard_core.identity import desktop_identity
from torchyard_core.next_steps import CheckHosts, DeployAgent, SetHostField

ANSWER_TIMEOUT_S = 60.0
"""Time limit in seconds for each answer of the host while a connection is set up.

It is long enough for a slow host whose home folder is on NFS.
"""
TRIES = 4
"""Maximum number of attempts to connect.

Another attempt follows after the agent was replaced, and after the daemon has exited without an answer to `hello`.
"""
RETIRE_WITHIN_S = 10.0
"""Maximum time in seconds to wait for the daemon's exit after `retire`. A daemon usually exits within milliseconds."""
CHUNK = 64 * 1024
TOO_OLD = 93
"""Exit status of an interpreter that is too old, after which the shell tries the next interpreter."""
MAX_NOISE = 1 << 20
"""Maximum number of bytes of login output before the bootstrap's answer. If there are more, the connection fails."""

_SHELL = (
    'n=$1; c=$2; shift 2; for p; do case $p in "~/"*) p=$HOME/${p#??};; esac; '
    'command -v "$p" >/dev/null 2>&1 || continue; '
    f'"$p" -E -s -S -c "$c" "$n"; r=$?; case $r in {TOO_OLD}|126|127) ;; *) exit $r;; esac; '
    'done; echo "$n {\\"no_python\\": true}"'
)
"""The script that `/bin/sh` runs on the host.

It contains no `!`, newlines or single quotes, because a login shell such as csh or fish would interpret them.
"""
_INTERPRETER = (
    "import sys; v = sys.version_info; "
    'old = \'{"too_old": "%s", "at": "%s"}\' % (".".join(map(str, v[:3])), sys.executable); '
    f'v >= (3, 9) or (sys.stdout.write(sys.argv[1] + " " + old + "\\n"), sys.stdout.flush(), sys.exit({TOO_OLD})); '
    "exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
)

Progress = Callable[[int, int], None]
"""A callback that is called with (bytes sent, total bytes)."""


def attach(
    host: Host,
    dialer: SshDialer,
    archive: Archive,
    *,
    install: bool = True,
    replace_same_version: bool = False,
    cluster: str = "",
    progress: Progress = lambda done, total: None,
) -> DaemonClient:
    """Connects to the daemon of `host`. Installs and starts the agent if necessary.

    An agent that is older than this desktop's is replaced unless it refuses; its runs continue. A newer agent is kept.
    If an agent of another version was kept, `remark` of the returned link contains a message for the user.

    Args:
        install: Whether to install an agent on a host without one.
        replace_same_version: Whether to replace an agent that has the same version but other sources. Each call
            replaces it at most once, so that two desktops do not replace each other's agents forever.
        cluster: The name of the cluster whose login node is `host`; empty for any other host. With a cluster, the link
            leads to a session instead of a daemon. The session runs this desktop's version of the agent and ends with
            the link.
        progress: Called while the archive is sent.

    Raises:
        HostError: The host cannot be used.
    """
    mine = version_order(archive.version)
    for tries_left in reversed(range(TRIES)):
        try:
            link = _attach_once(host, dialer, archive, install, progress, cluster)
        except _DaemonExited as exited:
            if not tries_left:
                raise exited.error from exited
            continue
        theirs = version_order(str(link.hello["version"]))
        stale = theirs == mine and link.hello["sha256"] != archive.sha256 and replace_same_version
        if not tries_left or not (theirs < mine or stale):
            break
        if (refusal := _retire(link)) is not None:
            link.remark = f"{host.name}: its agent {link.hello['version']} is older and stays: {refusal.message}"
            break
        replace_same_version = replace_same_version and not stale
    link.agent_is_newer = theirs > mine
    if link.agent_is_newer:
        link.remark = (
            f"{host.name}: its agent is newer than this desktop's ({archive.version}) and was kept: "
            f"{link.hello['version']}. Upgrade Torchyard here to use its new features."
        )
    if link.hello.get("oldest_protocol", link.hello["protocol"]) > PROTOCOL:
        link.close()
        raise AgentFailed(
            host.name,
            f"{host.name} has agent {link.hello['version']}, which is newer than this desktop ({archive.version}).",
            hint="Upgrade Torchyard here.",
        )
    return link


class _DaemonExited(Exception):
    """Raised if the connection ends before the answer to `hello`, for example because another daemon was started."""

    def __init__(self, error: AgentFailed):
        super().__init__(error.message)
        self.error = error


def _retire(link: DaemonClient) -> AgentRefused | None:
    """Asks the daemon to exit, and waits up to RETIRE_WITHIN_S for the end of the connection.

    Returns:
        The error if the daemon refused, in which case the link stays open; otherwise None.
    """
    gone = threading.Event()
    link.on_close(gone.set)
    try:
        link.call("retire", {"by": desktop_identity()})
    except Unreachable:
        pass  # Unreachable is ignored, because the daemon may exit before its answer is sent.
    except AgentRefused as refusal:
        return refusal
    gone.wait(RETIRE_WITHIN_S)
    link.close()
    return None


def interpreters(host: Host) -> list[str]:
    """Returns the candidates for the agent's interpreter in order of preference."""
    own = [sys.executable] if host.local else []
    candidates = [host.agent_python, "/usr/bin/python3", host.python, *own, "python3", "python"]
    return list(dict.fromkeys(path for path in candidates if path))


def command_line(host: Host, nonce: str) -> list[str]:
    """Returns the arguments of the command that runs on the host."""
    return ["/bin/sh", "-c", _SHELL, "sh", nonce, _INTERPRETER, *interpreters(host)]


def _attach_once(
    host: Host, dialer: SshDialer, archive: Archive, install: bool, progress: Progress, cluster: str
) -> DaemonClient:
    nonce = secrets.token_hex(16)
    channel = _open(host, dialer, nonce)
    try:
        return _bridge(host, channel, nonce, archive, install, progress, cluster)
    except BaseException:  # The channel must also be closed after KeyboardInterrupt.
        channel.close()
        raise


def _open(host: Host, dialer: SshDialer, nonce: str) -> Channel:
    command = command_line(host, nonce)
    if host.local:
        return _started(host, command[0], lambda: ProcessChannel(command))
    remote = "exec " + shlex.join(command)
    if host.transport is Transport.OPENSSH:
        return _started(host, "ssh", lambda: open_ssh(host, dialer.known_hosts, remote, dialer.throttle))
    return dialer.connect(host).execute(remote)


def _started(host: Host, program: str, start: Callable[[], Channel]) -> Channel:
    try:
        return start()
    except OSError as error:
        raise AgentFailed(host.name, f"{program} cannot be started on this computer: {error.strerror}.") from error


def _bridge(
    host: Host, channel: Channel, nonce: str, archive: Archive, install: bool, progress: Progress, cluster: str
) -> DaemonClient:
    header = {
        "nonce": nonce,
        "sha256": archive.sha256,
        "size": len(archive.data),
        "sources": archive.unpacked,
        "agent_dir": host.agent_dir or paths.DEFAULT_AGENT_DIR,
        "install": install,
        "by": desktop_identity(),
        **({"cluster": cluster} if cluster else {}),
    }
    opening = b"%d\n%s%s\n" % (len(archive.bootstrap), archive.bootstrap, json.dumps(header).encode())
    answers = _AnswerReader(host, channel, nonce)
    answers.send(opening)
    first = answers.next()
    if first.get("absent"):
        on_cluster = ("A check of the cluster installs it.", CheckHosts((host.name,)))
        hint = on_cluster if cluster else DeployAgent(host.name)
        raise AgentMissing(host.name, f"there is no agent on {host.name}.", hint=hint)
    if place := find_mismatch(first, FIRST_ANSWER):
        raise AgentFailed(host.name, f"the agent on {host.name} violates the protocol: `{place}` of its first answer.")
    if not first["have"]:
        for start in range(0, len(archive.data), CHUNK):
            answers.send(archive.data[start : start + CHUNK])
            progress(min(start + CHUNK, len(archive.data)), len(archive.data))
    last = answers.next()
    link = DaemonClient(host.name, channel, answers.rest())
    link.archive = archive.sha256
    link.python = f"{first['python_version']} at {first['python']}"
    connection = str(last.get("ssh_connection", "")).split()
    link.ssh_address = connection[2] if len(connection) == 4 else ""
    try:
        link.hello = link.call("hello", {"version": archive.version}, ANSWER_TIMEOUT_S)
    except TorchyardError as error:
        link.close()
        if error.code == "agent_ended":
            raise
        message = f"the agent on {host.name} was started and does not answer: {error.message}"
        failed = AgentFailed(host.name, message, hint=f"See {header['agent_dir']}/hosts/*/daemon.log there.")
        if isinstance(error, Unreachable):
            raise _DaemonExited(failed) from error
        raise failed from error
    return link


class _AnswerReader:
    """Reads the answers of the bootstrap, which are lines that begin with the nonce. Skips all other output."""

    def __init__(self, host: Host, channel: Channel, nonce: str):
        self._host = host
        self._channel = channel
        self._mark = nonce.encode() + b" "
        self._buffer = b""
        self._too_old: list[str] = []

    def send(self, data: bytes) -> None:
        try:
            self._channel.send(data)
        except (OSError, EOFError) as error:
            # If the interpreter has exited, its last answer describes the cause better than the "broken pipe" error
            # does.
            self.next()
            raise self._broken() from error

    def next(self) -> dict[str, Any]:
        """Returns the next answer. Raises HostError if the answer reports an error or there is no valid answer."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            start = self._buffer.find(self._mark)
            end = self._buffer.find(b"\n", start)
            if start >= 0 and end >= 0:
                try:
                    answer = json.loads(self._buffer[start + len(self._mark) : end])
                except (ValueError, RecursionError):
                    raise self._broken() from None
                if not isinstance(answer, dict):
                    raise self._broken()
                self._buffer = self._buffer[end + 1 :]
                if "too_old" in answer:
                    self._too_old.append(f"{answer['too_old']} at {answer.get('at')}")
                    continue
                return self._checked(answer)
            try:
                data = self._channel.receive(max(0.1, deadline - time.monotonic()))
            except TimeoutError:
                raise self._broken() from None
            if not data or len(self._buffer) > MAX_NOISE:
                raise self._broken()
            self._buffer += data

    def rest(self) -> bytes:
        """Returns the bytes received after the last answer."""
        rest, self._buffer = self._buffer, b""
        return rest

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        host = self._host.name
        if "no_python" in answer:
            candidates = ", ".join(interpreters(self._host))
            found = f"found {'; '.join(self._too_old)}" if self._too_old else f"looked for {candidates}"
            message = f"there is no Python ≥ 3.9 on {host}: {found}."
            raise NoPython(host, message, hint=("Install one, or name it.", SetHostField(host, "agent_python")))
        if "unsafe" in answer:
            raise AgentFailed(
                host,
                f"the agent does not run from {answer.get('folder')} on {host}, where other users could plant code: "
                f"{answer['unsafe']}.",
                hint=(
                    "Inspect that folder and `chmod go-w` it there, or use a folder that only this user can write to.",
                    SetHostField(host, "agent_dir"),
                ),
            )
        if "error" in answer:
            message = f"the agent could not be installed on {host} in {answer.get('folder')}: {answer['error']}."
            hint = (
                "Check the free disk space, and whether this user may write there.",
                SetHostField(host, "agent_dir"),
            )
            raise AgentFailed(host, message, hint=hint)
        return answer

    def _broken(self) -> HostError:
        errors = self._channel.errors()
        if self._host.transport is Transport.OPENSSH and (explained := explain(self._host.name, errors)):
            return explained
        printed = f"{errors}\n{self._buffer.decode(errors='replace')}"
        if "Traceback (most recent call last)" in printed:  # The last line of a traceback contains the error.
            printed = printed.rstrip().rpartition("\n")[2]
        output = " ".join(printed.split())[-300:].rstrip(".")
        return AgentFailed(
            self._host.name,
            f"the agent could not be started on {self._host.name}: "
            + (f"the host said: {output}." if output else "the connection ended without an answer."),
            hint=f"Is `agent_python` ({self._host.agent_python}) a Python ≥ 3.9 there?"
            if self._host.agent_python
            else "Can this user run `/bin/sh` and `python3` there over SSH?",
        )
