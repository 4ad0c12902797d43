"""The first code that runs on a host: installs the agent's archive if necessary, then becomes the bridge.

This code is sent over stdin and run by the first Python interpreter that is 3.9 or later, so it must be self-contained
and import little. It reads a header line, and answers with a line that begins with a nonce, because a login shell may
print other text before it. It then receives the archive if the host does not have it, and runs
`torchyard_agent.ssh_bridge` from that archive, or `torchyard_agent.slurm.session` on the login node of a cluster. If
the host has no agent and none may be installed, it only reports this.

A new archive is stored as one file and run from memory, because writing its files would delay the first answer. The
daemon unpacks it later (`torchyard_agent.daemon.hello_server`). The archive is zlib-compressed JSON that maps paths to
text, because importing tarfile would take 38 ms.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

sys.path[:] = [path for path in sys.path if path]  # Removes the empty entry, which stands for the current folder.
sys.dont_write_bytecode = True  # Bytecode is written only by `daemon.bytecode`.

try:  # Python's own implementation is used, because `hashlib` loads OpenSSL, which takes 4 MB of memory.
    from _sha2 import sha256  # type: ignore[import-not-found,unused-ignore]  # This module exists only since Python 3.12.
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found,unused-ignore]  # This module exists only before Python 3.12.
    except ImportError:
        from hashlib import sha256


def answer(nonce: str, result: dict[str, object]) -> None:
    os.write(1, nonce.encode() + b" " + json.dumps(result).encode() + b"\n")


def create_store(store: str) -> None:
    """Creates the store and the agent's folder. Raises OSError if this fails.

    Missing parents of the agent's folder are created and recorded. `undeploy` removes them again.
    """
    made, above = [], os.path.dirname(os.path.dirname(store))
    while not os.path.isdir(above):
        made.append(above)
        above = os.path.dirname(above)
    os.makedirs(store, 0o700, exist_ok=True)
    if made:
        with open(os.path.join(store, "made.json"), "w") as file:
            json.dump(made, file)


def receive(size: int, name: str, place: str) -> bytes:
    """Reads the archive from stdin, stores it at `place`, and returns its text. `name` is the SHA-256 of the text.

    Raises OSError if the archive is incomplete or damaged, or cannot be stored.
    """
    data = sys.stdin.buffer.read(size)
    if len(data) != size:
        raise OSError(f"the connection ended after {len(data)} of the archive's {size} bytes")
    text = decompressed(data, name)
    if not text:
        raise OSError("the archive was damaged in transit")
    create_store(os.path.dirname(place))
    scratch = f"{place}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with open(scratch, "wb") as file:
            file.write(data)
        os.rename(scratch, place)
    except OSError:
        if os.path.exists(scratch):
            os.unlink(scratch)
        raise
    return text


def whole_archive(place: str, name: str) -> bytes:
    """Returns the text of the archive at `place`, or b"" if the file is missing, unreadable or damaged."""
    try:
        with open(place, "rb") as file:
            return decompressed(file.read(), name)
    except OSError:
        return b""


def decompressed(data: bytes, name: str) -> bytes:
    """Returns the archive's text, or b"" if the data cannot be decompressed or the text's hash is not `name`.

    The hash is computed from the text, because different builds of zlib produce different compressed bytes.
    """
    import zlib

    try:
        text = zlib.decompress(data)
    except zlib.error:
        return b""
    return text if sha256(text).hexdigest() == name else b""


class Unsafe(Exception):
    """Raised if another user of this host could change files in a folder."""


def refuse_unsafe_store(store: str, agent_dir: str) -> None:
    """Raises Unsafe if another user (except root) could create files in the store or replace a parent of it."""
    path, inside = store, True
    while True:
        try:
            about = os.stat(path)
        except FileNotFoundError:
            about = None
        if about is not None:
            # Parents of the agent's folder may be writable if they have the sticky bit, as /tmp has. In a container,
            # owners without a mapping appear as 65534.
            owners = (os.getuid(), 0) if inside else (os.getuid(), 0, 65534)
            if about.st_uid not in owners:
                raise Unsafe(f"{path} belongs to another user (uid {about.st_uid})")
            if about.st_mode & 0o022 and (inside or not about.st_mode & 0o1000):
                raise Unsafe(f"other users may write to {path} (mode {about.st_mode & 0o7777:o})")
        inside = inside and path != agent_dir
        if path == os.path.dirname(path):
            return
        path = os.path.dirname(path)


def hash_of_sources(folder: str) -> str:
    """Returns the SHA-256 over the paths and bytes of all sources in a folder.

    Files in `__pycache__` are not sources. Returns "" if there is a file of a type that archives never contain, or if
    another user (except root) owns or may write to a file or subfolder.
    """
    sources = []
    for parent, folders, names in os.walk(folder):
        for name in folders + names:
            about = os.lstat(os.path.join(parent, name))
            if about.st_uid not in (os.getuid(), 0) or about.st_mode & 0o022:
                # Symbolic links have mode 0o777, so they are rejected too.
                return ""
        if os.path.basename(parent) != "__pycache__":
            sources += [os.path.join(parent, name) for name in names]
    digest = sha256()
    for path in sorted(os.path.relpath(path, folder) for path in sources):
        if not path.endswith((".py", ".dist-info/entry_points.txt")):
            return ""
        with open(os.path.join(folder, path), "rb") as file:
            data = file.read()
        digest.update(b"%s\0%d\0" % (path.encode(), len(data)))
        digest.update(data)
    return str(digest.hexdigest())


def is_unpacked(folder: str, sources: str) -> bool:
    """Returns whether a folder contains exactly the sources of an archive.

    If the folder has other contents, for example after a power failure, it is removed. Raises OSError if the folder
    cannot be read or renamed.

    Args:
        sources: The expected result of `hash_of_sources`.
    """
    if not os.path.lexists(folder):
        return False
    try:
        if not os.path.islink(folder) and hash_of_sources(folder) == sources:
            return True
        aside = f"{folder}.{os.getpid()}.{os.urandom(4).hex()}"
        os.rename(folder, aside)
    except FileNotFoundError:  # Another host with the same home folder removed the folder.
        return False
    import shutil

    shutil.rmtree(aside, ignore_errors=True)
    return False


def unpack(sources: dict[str, str], folder: str) -> None:
    """Writes the archive's files to a temporary folder, and renames it to `folder`, which is so complete or absent."""
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
        # The folder already exists if another host that shares this home created it first.
        if not os.path.isdir(folder):
            raise


class Sources:
    """An importer that imports modules from the archive in memory, until the archive is unpacked."""

    def __init__(self, sources: dict[str, str], folder: str):
        self._sources = sources
        self._folder = folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        stem = name.replace(".", "/")
        for below, is_package in ((stem + "/__init__.py", True), (stem + ".py", False)):
            if below in self._sources:
                place = os.path.join(self._folder, below)
                spec = ModuleSpec(name, self, origin=place, is_package=is_package)  # type: ignore[arg-type]  # The class is not a subclass of Loader.
                spec.has_location = True
                if is_package:
                    spec.submodule_search_locations = [os.path.dirname(place)]
                return spec
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Returns None, so Python creates the module as usual."""

    def exec_module(self, module: ModuleType) -> None:
        origin = str(module.__spec__ and module.__spec__.origin)
        below = os.path.relpath(origin, self._folder)
        exec(compile(self._sources[below], origin, "exec"), module.__dict__)

    def settle(self) -> None:
        """Unpacks the archive, unless an earlier call did so. From then on, Python imports from the folder."""
        if self in sys.meta_path:
            unpack(self._sources, self._folder)
            sys.meta_path.remove(self)
            sys.path.insert(0, self._folder)


def do_nothing() -> None:
    """Replaces Sources.settle() if the archive is already unpacked."""


def main() -> int:
    header = json.loads(sys.stdin.buffer.readline())
    # The agent's files must be private. The user's programs, however, must run with the login's umask.
    os.environ["TORCHYARD_UMASK"] = f"{os.umask(0o077):o}"
    nonce, name = header["nonce"], header["sha256"]
    agent_dir = os.path.realpath(os.path.expanduser(header["agent_dir"]))
    folder = os.path.join(agent_dir, "store", name)
    kept = folder + ".archive"
    try:
        refuse_unsafe_store(os.path.dirname(folder), agent_dir)
        unpacked = is_unpacked(folder, header["sources"])
    except Unsafe as error:
        answer(nonce, {"unsafe": str(error), "folder": agent_dir})
        return 1
    except OSError as error:
        answer(nonce, {"error": str(error), "folder": agent_dir})
        return 1
    text = b"" if unpacked else whole_archive(kept, name)
    # If `install` is false, the host must already have an agent, of any version.
    if not header["install"] and not os.path.isdir(os.path.dirname(folder)):
        answer(nonce, {"absent": True})
        return 0
    answer(nonce, {"have": unpacked or bool(text), "python": sys.executable, "python_version": sys.version.split()[0]})
    settle = do_nothing
    if unpacked:
        sys.path.insert(0, folder)
    else:
        try:
            text = text or receive(header["size"], name, kept)
        except OSError as error:
            answer(nonce, {"error": str(error), "folder": agent_dir})
            return 1
        sources = Sources(json.loads(text), folder)
        sys.meta_path.insert(0, sources)
        settle = sources.settle
    if header.get("cluster"):
        from torchyard_agent.slurm import session

        return session.main(agent_dir, name, str(header["cluster"]), lambda result: answer(nonce, result), settle)
    from torchyard_agent import ssh_bridge

    return ssh_bridge.main(agent_dir, name, lambda result: answer(nonce, result), settle, header.get("by", ""))


sys.exit(main())
