"""Binds torch's store to MASTER_ADDR. By default, torch listens on every interface without authentication.

torch 2.5 and later call `install` when torch is imported, because the archive declares it as an entry point of the
group `torch.backends` (https://docs.pytorch.org/tutorials/unstable/python_extension_autoload.html). If MASTER_ADDR is a
name, or not an address of this host (NAT), torch listens as usual.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from typing import Any

_BACKLOG = 2048


def install() -> None:
    """Wraps the function with which torch creates its stores.

    Must not raise, because `import torch` would then fail.
    """
    rendezvous = sys.modules.get("torch.distributed.rendezvous")
    if rendezvous is None or "TORCHYARD_REPLICA" not in os.environ:
        return
    usual = getattr(rendezvous, "_create_c10d_store", None)
    if usual is None:
        return

    def create(hostname: str, port: int, rank: int, world_size: int, timeout: Any, use_libuv: bool = True) -> Any:
        listener = None
        if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            listener = listener_at(hostname, port)
        if listener is None:
            # Either this is not rank 0, or the address cannot be bound. When rank 0 creates more groups, the address
            # is already in use, and torch connects to the existing store.
            return usual(hostname, port, rank, world_size, timeout, use_libuv)
        return rendezvous.TCPStore(
            host_name=hostname,
            port=port,
            world_size=world_size,
            is_master=True,
            timeout=timeout,
            multi_tenant=True,
            master_listen_fd=listener.detach(),  # torch closes this descriptor.
            use_libuv=use_libuv,
        )

    rendezvous._create_c10d_store = create  # type: ignore[attr-defined]  # torch has no public hook.


def listener_at(hostname: str, port: int) -> socket.socket | None:
    """Returns a socket that listens at this address only, or None if the address cannot be bound."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(hostname).version == 6 else socket.AF_INET
    except ValueError:
        return None
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((hostname, port))
            listener.listen(_BACKLOG)
        except OSError:
            return None
        stack.pop_all()
        return listener
