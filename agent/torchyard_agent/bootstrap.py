"""First code to run on a host: makes sure that the agent's archive is there, then becomes the bridge.

Sent over stdin and run by the first interpreter ≥ 3.9, so it must stand alone and import little. It reads one
header line, answers one line after the nonce (a login shell may have printed noise before it), takes the archive
if the host has none, and hands over to `torchyard_agent.bridge` of that archive.

A new archive is kept as one file and run from memory, so that the first answer does not wait for seventy files to
be written and compiled; the daemon unpacks it when it has time (`torchyard_agent.daemon.first_contact`). It is
zlib-compressed JSON, path to text: that opens with modules that the agent needs anyway; tarfile alone costs 38 ms.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

sys.path[:] = [path for path in sys.path if path]  # not the folder that the login starts in
sys.dont_write_bytecode = True  # `daemon.compiling` does, with care


def say(nonce: str, answer: dict[str, object]) -> None:
    os.write(1, nonce.encode() + b" " + json.dumps(answer).encode() + b"\n")


def make_store(store: str) -> None:
    """Makes the store, which lies in the agent's folder. Folders above that one which were missing too are noted in it:
    they go with the last of ours. Raises OSError."""
    made, above = [], os.path.dirname(os.path.dirname(store))
    while not os.path.isdir(above):
        made.append(above)
        above = os.path.dirname(above)
    os.makedirs(store, 0o700, exist_ok=True)
    if made:
        with open(os.path.join(store, "made.json"), "w") as file:
            json.dump(made, file)


def receive(size: int, sha256: str, place: str) -> bytes:
    """The archive's bytes from stdin, verified and kept at `place`."""
    import hashlib

    data = sys.stdin.buffer.read(size)
    if len(data) != size:
        raise OSError(f"the connection ended after {len(data)} of the archive's {size} bytes")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise OSError("the archive was damaged on the way")
    make_store(os.path.dirname(place))
    scratch = f"{place}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with open(scratch, "wb") as file:
            file.write(data)
        os.rename(scratch, place)
    except OSError:
        if os.path.exists(scratch):
            os.unlink(scratch)
        raise
    return data


def whole_archive(place: str, sha256: str) -> bytes:
    """The archive that is kept at `place`; empty where there is none, or one that a power cut left half-written."""
    import hashlib

    try:
        with open(place, "rb") as file:
            data = file.read()
    except OSError:
        return b""
    return data if hashlib.sha256(data).hexdigest() == sha256 else b""


def is_unpacked(folder: str, size: int) -> bool:
    """Whether a folder holds all of an archive's sources, which are of this size in bytes. A power cut may leave empty
    files: such a folder is taken away. Raises OSError.
    """
    if not os.path.isdir(folder):
        return False
    try:
        found = 0
        for parent, _, names in os.walk(folder):
            found += sum(os.path.getsize(os.path.join(parent, name)) for name in names if name.endswith(".py"))
        if found == size:
            return True
        aside = f"{folder}.{os.getpid()}.{os.urandom(4).hex()}"
        os.rename(folder, aside)
    except FileNotFoundError:  # a host with the same home takes it away, too
        return False
    import shutil

    shutil.rmtree(aside, ignore_errors=True)
    return False


def unpack(sources: dict[str, str], folder: str) -> None:
    """Writes the archive beside its place and renames it there: it is there whole, or not at all."""
    import shutil

    scratch = f"{folder}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        for path, text in sources.items():
            target = os.path.join(scratch, path)
            os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
            with open(target, "w", encoding="utf-8") as file:
                file.write(text)
        os.rename(scratch, folder)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        if not os.path.isdir(folder):  # else a host with the same home was faster: as good as ours
            raise


class Sources:
    """Imports modules out of the archive while it is not unpacked."""

    def __init__(self, sources: dict[str, str], folder: str):
        self._sources = sources
        self._folder = folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        stem = name.replace(".", "/")
        for below, is_package in ((stem + "/__init__.py", True), (stem + ".py", False)):
            if below in self._sources:
                place = os.path.join(self._folder, below)
                spec = ModuleSpec(name, self, origin=place, is_package=is_package)  # type: ignore[arg-type]  # no Loader by descent
                spec.has_location = True
                if is_package:
                    spec.submodule_search_locations = [os.path.dirname(place)]
                return spec
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """As Python itself makes them."""

    def exec_module(self, module: ModuleType) -> None:
        origin = str(module.__spec__ and module.__spec__.origin)
        below = os.path.relpath(origin, self._folder)
        exec(compile(self._sources[below], origin, "exec"), module.__dict__)

    def settle(self) -> None:
        """Unpacks the archive and leaves what is imported from now on to Python itself."""
        if self in sys.meta_path:
            unpack(self._sources, self._folder)
            sys.meta_path.remove(self)
            sys.path.insert(0, self._folder)


def do_nothing() -> None:
    """What settling means for an archive that is unpacked already."""


def main() -> int:
    header = json.loads(sys.stdin.buffer.readline())
    nonce, sha256 = header["nonce"], header["sha256"]
    agent_dir = os.path.realpath(os.path.expanduser(header["agent_dir"]))
    folder = os.path.join(agent_dir, "store", sha256)
    kept = folder + ".archive"
    try:
        unpacked = is_unpacked(folder, header["unpacked"])
    except OSError as error:
        say(nonce, {"error": str(error), "folder": agent_dir})
        return 1
    data = b"" if unpacked else whole_archive(kept, sha256)
    # An agent of another version is ours too: the bridge then speaks to its daemon.
    if not header["install"] and not os.path.isdir(os.path.dirname(folder)):
        say(nonce, {"absent": True})
        return 0
    say(nonce, {"have": unpacked or bool(data), "python": sys.executable, "python_version": sys.version.split()[0]})
    settle = do_nothing
    if unpacked:
        sys.path.insert(0, folder)
    else:
        import zlib

        try:
            data = data or receive(header["size"], sha256, kept)
        except OSError as error:
            say(nonce, {"error": str(error), "folder": agent_dir})
            return 1
        sources = Sources(json.loads(zlib.decompress(data)), folder)
        sys.meta_path.insert(0, sources)
        settle = sources.settle
    from torchyard_agent import bridge

    return bridge.main(agent_dir, sha256, lambda answer: say(nonce, answer), settle, header.get("by", ""))


sys.exit(main())
