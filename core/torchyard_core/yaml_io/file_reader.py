"""Reads the text of files that users write: topology, fleet, settings and search files."""

from __future__ import annotations

from pathlib import Path

from torchyard_core.yaml_io.syntax_errors import problem_at

MAX_BYTES = 4 * 1024 * 1024


def read_text(path: Path, source: str | None = None) -> str:
    """Returns the text of a file. Raises FileProblem if the file is missing, unreadable, too big or not UTF-8."""
    source = source or str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise problem_at(
            source,
            None,
            "there is no such file.",
            _other_suffix(path) or "Is the name right, and are you in the right folder?",
        ) from None
    except NotADirectoryError:
        raise problem_at(source, None, "part of this path is a file, not a folder.", "Is the path right?") from None
    except IsADirectoryError:
        raise problem_at(source, None, "this is a folder.", "Name the YAML file in it.") from None
    except PermissionError:
        raise problem_at(
            source, None, "you are not allowed to read this file.", "Change its permissions, or copy it."
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise problem_at(source, None, f"the file cannot be read: {reason}.") from None
    if len(raw) > MAX_BYTES:
        raise problem_at(source, None, f"the file is over the limit of {MAX_BYTES // 2**20} MB.")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise problem_at(source, 1, "the file is UTF-16.", "Save it as UTF-8.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        byte = raw[error.start]
        raise problem_at(source, line, f"byte 0x{byte:02x} is not UTF-8 text.", "Save the file as UTF-8.") from None


def path_exists(path: Path) -> bool:
    """Returns False if the path does not exist. If this is unknown, returns True, so that reading reports the error."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def _other_suffix(path: Path) -> str:
    """Returns a hint that names the existing file with the other YAML suffix (`.yaml` or `.yml`), or ""."""
    for suffix in (".yaml", ".yml"):
        other = path.with_suffix(suffix) if path.name else path
        if other != path and other.is_file():
            return f"Did you mean {other}?"
    return ""
