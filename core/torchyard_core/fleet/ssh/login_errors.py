"""Converts login errors to messages with hints."""

from __future__ import annotations

import socket

import paramiko

from torchyard_core.errors import HostError, LoginRefused, Unreachable
from torchyard_core.fleet.ssh.login_throttle import EarlyDrop
from torchyard_core.fleet.ssh.route import Route
from torchyard_core.next_steps import SetHostField, parts_of


def explain(route: Route, error: BaseException) -> HostError:
    """Converts an error during a login to a HostError.

    The error may come from paramiko or the operating system, or be an EarlyDrop. A HostError is returned unchanged.
    """
    name, place = route.name, f"{route.name} ({route.place})"
    if isinstance(error, HostError):
        return error
    if isinstance(error, EarlyDrop):
        return Unreachable(
            name,
            f"{place} accepts the connection and closes it before the login.",
            hint="Is its sshd flooded with logins (MaxStartups), does it block this computer, or does the port belong "
            "to another program?",
        )
    # An address that cannot be encoded as a host name, such as one with more than 63 characters between two dots,
    # raises UnicodeError.
    if isinstance(error, (socket.gaierror, UnicodeError)):
        hint = ("Use an IP address, or a Host of ~/.ssh/config.", SetHostField(name, "address"))
        of_name = f" of {name}" if name != route.address else ""
        return Unreachable(name, f"the address {route.address}{of_name} is not known to this computer.", hint=hint)
    if isinstance(error, ConnectionRefusedError):
        return Unreachable(
            name, f"port {route.port} of {route.address} ({name}) refused.", hint="Is sshd running there?"
        )
    if isinstance(error, TimeoutError):
        message = f"{place} did not answer within {route.connect_timeout_s:.0f} s."
        return Unreachable(name, message, hint="Is it up, and does a firewall allow the connection?")
    if isinstance(error, paramiko.SSHException) and ("banner" in str(error) or "No existing session" in str(error)):
        message = f"{place} accepts the connection and does not speak SSH."
        return Unreachable(name, message, hint="Is the port right, and is the host overloaded?")
    if isinstance(error, paramiko.ChannelException):
        return Unreachable(name, f"{place} refused: {error.text}.", hint="Does its sshd allow this user to do that?")
    detail = (isinstance(error, OSError) and error.strerror) or str(error).rstrip(".") or type(error).__name__
    return Unreachable(name, f"{place} cannot be reached: {detail}.", hint="Is it up, and is it an SSH server?")


def with_jump_of(host: str, error: HostError) -> HostError:
    """Returns the error of a login on `host` with next steps that the user can take in the fleet file.

    The fleet file has no entries for bastions. A next step that sets a field of a bastion is therefore replaced by one
    that sets `proxy_jump` of `host`.
    """
    edit = SetHostField(host, "proxy_jump")
    advice = tuple(
        edit if isinstance(part, SetHostField) and part.host != host else part for part in parts_of(error.advice)
    )
    if edit not in advice or edit in error.next or not isinstance(error, Unreachable | LoginRefused):
        return error
    return type(error)(error.host, error.message, code=error.code, hint=advice)


def silent_in_key_exchange(route: Route) -> HostError:
    """Returns the error for a server that sends its SSH banner, but does not complete the key exchange."""
    return Unreachable(
        route.name,
        f"{route.name} ({route.place}) sends its SSH banner and then nothing more: the key exchange did not end.",
        hint="Large packets may be lost (MTU of a VPN or tunnel). "
        f"`ping -M do -s 1472 {route.address}` shows it; a smaller MTU of this computer's interface (1280) helps.",
    )
