"""Collective calls over all trainers, under every strategy: mean, gather, any, barrier and broadcast.

Values are exchanged through the first of these that is available: the connections of a group that continues without
lost workers; a separate gloo group, if torch.distributed connects all trainers; the run's join store
(`store_collectives`); a gloo group at MASTER_ADDR. Sums are computed in double precision and in rank order, so results
are bitwise equal on all trainers. torch's default dtype and device have no effect.
"""

from __future__ import annotations

import base64
import io
import json
import math
import numbers
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Protocol

import torch
import torch.distributed as dist

from torchyard_roles.coordination.store_collectives import MEET_WITHIN_S, StoreCollectives
from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, PeerLost, RolesError, StoreTimeout, UsageProblem

if TYPE_CHECKING:
    from torchyard_roles.coordination.join_store_client import JoinStore

KEPT_CALLS = 100
"""Maximum number of collective calls before the first step whose results are kept for returning workers."""
AT_ONCE = 4096
"""Size in bytes of the first exchange, which contains the length of the value (8 bytes) and the value's beginning.

If a value is longer, a second exchange sends all values in full.
"""


class Collectives:
    """The collective calls that one process makes.

    Args:
        meet: Returns the run's join store, or None if there is none.
        resuming: Returns whether the script has not yet reached the point at which it resumes.
        members: The connections of a group that continues without lost workers.
        catching_up: Returns whether this process has returned after its loss and is repeating the script's code at the
            end of finished epochs. A collective call then returns the result for this process alone.
    """

    def __init__(
        self,
        environment: Environment,
        device: torch.device,
        meet: Callable[[], JoinStore | None],
        resuming: Callable[[], bool],
        members: Members | None = None,
        catching_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._environment = environment
        self._device = device
        self._meet = meet
        self._resuming = resuming
        self._members = members
        self._catching_up = catching_up
        self._meetings: StoreCollectives | None = None
        self._exchange: StoreCollectives | _World | _Remaining | None = None
        self._has_left = False

    def mean(self, x: Any) -> Any:
        values = self._exchanged("mean", _averageable(x))
        return _mean(values, x)

    def gather(self, x: Any) -> list[Any]:
        return self._exchanged("gather", plain(x, "gather"))

    def any(self, flag: Any) -> bool:
        return any(self._exchanged("any", bool(flag)))

    def barrier(self) -> None:
        self._exchanged("barrier", None)

    def broadcast(self, x: Any) -> Any:
        # The values that other ranks pass to broadcast() are neither copied nor sent.
        sends = self._environment.rank in (self._first, None) or self._catching_up()
        return self._exchanged("broadcast", plain(x, "broadcast") if sends else None, sends=sends)[0]

    def leave(self, *, stopped: bool = False) -> None:
        """Declares that this process makes no further collective calls."""
        if self._has_left:
            return
        self._has_left = True
        if not self._is_alone and self._members is None and (meetings := self._through_the_store()) is not None:
            meetings.leave(stopped=stopped)
        if isinstance(self._exchange, _World):
            self._exchange.close()

    @property
    def _is_alone(self) -> bool:
        return not self._environment.trains or self._environment.world_size == 1

    def _through_the_store(self) -> StoreCollectives | None:
        if self._meetings is None and (store := self._meet()) is not None:
            self._meetings = StoreCollectives(store, self._environment)
        return self._meetings

    @property
    def _first(self) -> int:
        return self._members.ranks[0] if self._members is not None else 0

    def _exchanged(self, what: str, x: Any, *, sends: bool = True) -> list[Any]:
        """Exchanges a value with all trainers, and returns the trainers' values in rank order."""
        if self._is_alone:
            return [x]
        if self._has_left:
            raise UsageProblem(
                f"{what}() was called after leave().", "Call it before leave(): the other trainers may have ended."
            )
        if self._catching_up():
            return [x]
        if self._exchange is None:
            self._exchange = self._choose(what)
        environment = self._environment
        data = io.BytesIO()
        torch.save({"rank": environment.rank, "name": environment.name, "what": what, "x": x, "sends": sends}, data)
        values = self._exchange.exchange(data.getvalue(), _site(what), what, resuming=self._resuming())
        found = [self._load(each) for each in values]
        for each in found:
            if each["what"] != what:
                raise UsageProblem(
                    f"{environment.name} called {what}(), but {each['name']} called {each['what']}().",
                    "All trainers must make the same calls in the same order: check whether one of them is "
                    "conditional.",
                )
        found.sort(key=lambda each: each["rank"])
        if not found[0]["sends"]:
            raise PeerLost("the chief", "another host", "it has ended, and broadcast() sends its value")
        return [each["x"] for each in found]

    def _load(self, data: bytes) -> Any:
        """Decodes a value, and puts its GPU tensors on this process's device and other tensors on the CPU."""

        def place(storage: Any, location: str) -> Any:
            on_cpu = location == "cpu" or self._device.type != "cuda"
            return storage if on_cpu else storage.cuda(self._device.index)

        return torch.load(io.BytesIO(data), map_location=place, weights_only=True)

    def _choose(self, what: str) -> StoreCollectives | _World | _Remaining:
        """Chooses the transport of the values, which is the same on all trainers."""
        if self._members is not None:
            return _Remaining(self._members, self._environment, self._meet())
        environment, meetings = self._environment, self._through_the_store()
        is_up = dist.is_available() and dist.is_initialized()
        if is_up and dist.get_world_size() == environment.world_size:
            if meetings is not None:
                # An exchange through the join store detects trainers that have exited. torch would wait half an hour
                # for them.
                meetings.exchange(b"", "", what)
            return _World(environment, dist.new_group(backend="gloo", timeout=timedelta(seconds=MEET_WITHIN_S)))
        if meetings is not None:
            return meetings
        if environment.master:
            return _World(environment, _met_at_the_master(environment), is_own=True)
        raise EnvironmentProblem(
            f"There are {environment.world_size} trainers, but MASTER_ADDR and MASTER_PORT are not set.",
            "In a topology set program.launcher to torch; elsewhere start the script with torchrun.",
        )


def plain(x: Any, what: str) -> Any:
    """Returns a copy of a number, text or tensor, or of a dict, list or tuple of them.

    Raises UsageProblem for other values.
    """
    if isinstance(x, torch.Tensor):
        return x.detach().clone()
    if x is None or isinstance(x, (bool, int, float, complex, str, bytes)):
        return x
    if isinstance(x, Mapping):
        return {plain(key, what): plain(value, what) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        items = [plain(value, what) for value in x]
        return tuple(items) if isinstance(x, tuple) else items
    if isinstance(x, numbers.Number) and hasattr(x, "item"):  # The value is a numpy number.
        return x.item()
    raise UsageProblem(
        f"{what}() got a {type(x).__name__}.", "Give it numbers, text, tensors, or dicts and lists of them."
    )


def _averageable(x: Any) -> Any:
    """Converts `x` for mean(): numbers to double precision, and tensors to double-precision tensors on the CPU."""
    if isinstance(x, torch.Tensor):
        whole = x.detach().to_dense() if x.layout is not torch.strided else x.detach()
        return whole.to(device="cpu", dtype=torch.complex128 if x.is_complex() else torch.float64, copy=True)
    if isinstance(x, Mapping):
        return {key: _averageable(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_averageable(value) for value in x]
    if isinstance(x, numbers.Real) or hasattr(x, "item"):  # numpy numbers and bool have a method item().
        return float(x)
    raise UsageProblem(f"mean() got a {type(x).__name__}.", "Give it a number, a tensor, or a dict or list of them.")


def _mean(values: Sequence[Any], like: Any) -> Any:
    """Returns the mean of all values, in the structure of `like`.

    Raises UsageProblem if the values' structures differ.
    """
    if isinstance(like, torch.Tensor):
        for value in values:
            if not isinstance(value, torch.Tensor) or value.shape != like.shape:
                raise _differs(_form(like), _form(value))
        total = torch.zeros_like(values[0])
        for value in values:
            total += value
        is_whole = not (like.is_floating_point() or like.is_complex())
        return (total / len(values)).to(device=like.device, dtype=total.dtype if is_whole else like.dtype)
    if isinstance(like, Mapping):
        keys = list(like)
        for value in values:
            if not isinstance(value, Mapping) or list(value) != keys:
                raise _differs(_form(like), _form(value))
        return {key: _mean([value[key] for value in values], like[key]) for key in keys}
    if isinstance(like, (list, tuple)):
        for value in values:
            if not isinstance(value, list) or len(value) != len(like):
                raise _differs(_form(like), _form(value))
        means = [_mean([value[at] for value in values], each) for at, each in enumerate(like)]
        return tuple(means) if isinstance(like, tuple) else means
    for value in values:
        if not isinstance(value, float):
            raise _differs("one number", _form(value))
    if all(map(math.isfinite, values)):
        return math.fsum(values) / len(values)
    return sum(values) / len(values)


def _form(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"a tensor of shape {tuple(x.shape)}"
    if isinstance(x, Mapping):
        return f"a dict of {', '.join(map(str, x)) or 'nothing'}"
    return f"{len(x)} values" if isinstance(x, (list, tuple)) else "one number"


def _differs(here: str, there: str) -> UsageProblem:
    return UsageProblem(
        f"mean() got {here} here and {there} on another trainer.",
        "Give it values of one shape: where parts differ in length, take the mean of their sums and of their counts.",
    )


def _site(what: str) -> str:
    """Returns a checksum of the script lines in the current call stack, which is the same on all ranks."""
    package = str(Path(__file__).parents[1])
    lines: list[str] = []
    frame = sys._getframe(1)
    while frame is not None and len(lines) < 50:
        if not frame.f_code.co_filename.startswith(package):
            lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        if frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>":
            break  # Stack frames outside the script may differ between ranks.
        frame = frame.f_back  # type: ignore[assignment]  # If f_back is None, the loop ends.
    return f"{zlib.crc32(' '.join([what, *lines]).encode()):08x}"


class Members(Protocol):
    """The connections of a group that continues without lost workers."""

    is_joining: bool
    has_trained: bool

    @property
    def ranks(self) -> Sequence[int]: ...

    def gather(self, value: bytes) -> list[bytes]: ...


class _Remaining:
    """The exchange of values between all workers that are not lost.

    The results of calls before the first step are kept in the join store, because returning workers make the same calls
    before they join the others.
    """

    def __init__(self, members: Members, environment: Environment, store: JoinStore | None) -> None:
        self._members = members
        self._environment = environment
        self._store = store
        self._calls = 0

    def exchange(self, value: bytes, site: str, what: str, *, resuming: bool) -> list[bytes]:
        key = f"calls/{self._environment.gang}/{self._environment.generation}/{self._calls}"
        self._calls += 1
        if self._members.is_joining:
            kept = self._store.try_get(key) if self._store is not None else None
            if kept is None:
                raise UsageProblem(
                    f"{what}() was called before the first step on {self._environment.name}, which joins the others "
                    "later, and the result of the other workers was not kept.",
                    f"At most {KEPT_CALLS} results of up to 64 KiB from before the first step are kept.",
                )
            return [base64.b64decode(each) for each in json.loads(kept)]
        values = self._members.gather(value)
        if self._store is not None and not self._members.has_trained and self._calls <= KEPT_CALLS:
            kept = json.dumps([base64.b64encode(each).decode() for each in values]).encode()
            if self._environment.rank == self._members.ranks[0]:
                with suppress(RolesError):  # A result that is too large for the store is not kept.
                    self._store.set(key, kept)
        return values


class _World:
    """The exchange of values over a gloo group of all trainers, which is used for collective calls only."""

    def __init__(self, environment: Environment, group: Any, *, is_own: bool = False) -> None:
        self._size = environment.world_size
        self._master = environment.master
        self._group = group
        self._is_own = is_own

    def exchange(self, value: bytes, site: str, what: str, *, resuming: bool) -> list[bytes]:
        """Exchanges a value with all trainers, and returns the trainers' values in rank order.

        `site` and `resuming` are ignored, since all trainers in a process group restart together.
        """
        head = len(value).to_bytes(8, "little") + value[: AT_ONCE - 8]
        heads = self._gathered(head.ljust(AT_ONCE, b"\0"), what)
        lengths = [int.from_bytes(each[:8], "little") for each in heads]
        longest = max(lengths)
        if longest > AT_ONCE - 8:
            heads = self._gathered(bytes(8) + value.ljust(longest, b"\0"), what)
        return [each[8 : 8 + length] for each, length in zip(heads, lengths)]

    def _gathered(self, value: bytes, what: str) -> list[bytes]:
        mine, found = bytearray(value), [bytearray(len(value)) for _ in range(self._size)]
        tensors = [torch.frombuffer(each, dtype=torch.uint8) for each in (mine, *found)]
        try:
            self._group.allgather([tensors[1:]], [tensors[0]]).wait()
        except RuntimeError as error:
            raise _lost(error, what, self._master) from error
        return list(map(bytes, found))

    def close(self) -> None:
        if self._is_own:
            from torchyard_roles.coordination import gloo_shutdown

            self._group = None
            gloo_shutdown.settle()


def _met_at_the_master(environment: Environment) -> Any:
    """Creates a process group at MASTER_ADDR. The script may still initialize torch's default group itself."""
    timeout = timedelta(seconds=MEET_WITHIN_S)
    rank, size = environment.rank or 0, environment.world_size
    try:
        store, _, _ = next(iter(dist.rendezvous("env://", rank=rank, world_size=size, timeout=timeout)))
        prefix = f"torchyard/collectives/{environment.generation}"
        return dist.ProcessGroupGloo(dist.PrefixStore(prefix, store), rank, size, timeout)
    except RuntimeError as error:
        raise _lost(error, "the first exchange", environment.master) from error


def _lost(error: RuntimeError, what: str, master: str) -> PeerLost | StoreTimeout:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    call = what if " " in what else f"{what}()"
    if re.search(r"time[d ]*out", reason, re.IGNORECASE):
        return StoreTimeout(f"Not all trainers called {call} within {MEET_WITHIN_S:g} s: {reason}")
    address = re.search(r"\[([0-9a-fA-F.:]+)\]:\d+", reason)
    host = address.group(1) if address else master.rpartition(":")[0] or "another host"
    return PeerLost("another trainer", host, f"it has ended without {call}, which all trainers must call ({reason})")
