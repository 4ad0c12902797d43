"""Messages of JSON-RPC 2.0, one per line of limited size (https://www.jsonrpc.org/specification)."""

from __future__ import annotations

import json
from typing import Any, Union

MAX_LINE = 8 * 1024 * 1024
"""Maximum length of a line in bytes. If a peer sends a longer line, its connection is closed."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
APPLICATION_ERROR = -32000
"""The JSON-RPC error number of Torchyard's own errors.

`data` contains {"code": a short word, "hint": what to do, "run_id": the run that the error concerns, if any}.
"""

RequestId = Union[int, str]


class RpcError(Exception):
    """An error response: a message, a short code, a hint about the next step, and the ID of the run, if any."""

    def __init__(
        self, message: str, code: str = "internal", hint: str = "", number: int = APPLICATION_ERROR, run_id: str = ""
    ):
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.number = number
        self.run_id = run_id


class MalformedMessage(ValueError):
    """Raised if a line is not a JSON-RPC message."""


def _line(message: dict[str, Any]) -> bytes:
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
    # If a file name is not valid UTF-8, it contains surrogates, which json.loads() accepts.
    line = text.encode("utf-8", "surrogatepass") + b"\n"
    if len(line) > MAX_LINE:
        raise ValueError(f"a message of {len(line)} bytes is over the limit of {MAX_LINE}")
    return line


def request(id: RequestId, method: str, params: dict[str, Any]) -> bytes:
    return _line({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def notification(method: str, params: dict[str, Any]) -> bytes:
    return _line({"jsonrpc": "2.0", "method": method, "params": params})


def response(id: RequestId, result: Any) -> bytes:
    return _line({"jsonrpc": "2.0", "id": id, "result": result})


def error_response(id: RequestId | None, error: RpcError) -> bytes:
    data = {"code": error.code, "hint": error.hint, **({"run_id": error.run_id} if error.run_id else {})}
    return _line({"jsonrpc": "2.0", "id": id, "error": {"code": error.number, "message": error.message, "data": data}})


def error_of(message: dict[str, Any]) -> RpcError:
    """Converts an error response to an RpcError."""
    raw = message.get("error")
    error: dict[str, Any] = raw if isinstance(raw, dict) else {}
    raw_data = error.get("data")
    data: dict[str, Any] = raw_data if isinstance(raw_data, dict) else {}
    number = error.get("code")
    return RpcError(
        str(error.get("message", "unknown error")),
        str(data.get("code", "internal")),
        str(data.get("hint", "")),
        number if isinstance(number, int) else INTERNAL_ERROR,
        str(data.get("run_id", "")),
    )


def parse(line: bytes) -> dict[str, Any]:
    """Parses one line. Raises MalformedMessage unless it is a JSON-RPC 2.0 message."""
    try:
        message = json.loads(line)
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"not JSON: {error}") from error
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise MalformedMessage("not a JSON-RPC 2.0 object")
    if not isinstance(message.get("id"), (str, int, float, type(None))):
        raise MalformedMessage("id must be a number or text")
    if "method" in message and not isinstance(message.get("params", {}), dict):
        raise MalformedMessage("params must be an object")
    return message
