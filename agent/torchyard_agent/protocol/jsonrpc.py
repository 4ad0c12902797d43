"""JSON-RPC 2.0, one message a line, size-capped (https://www.jsonrpc.org/specification)."""

from __future__ import annotations

import json
from typing import Any, Union

MAX_LINE = 8 * 1024 * 1024
"""Bytes. A longer line is a protocol error, and the connection that sent it is closed."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
APPLICATION_ERROR = -32000
"""Ours: `data` holds {"code": short word, "hint": what to do}."""

RequestId = Union[int, str]


class RpcError(Exception):
    """The other side answered with an error: a sentence, a short code, and what to do about it."""

    def __init__(self, message: str, code: str = "internal", hint: str = "", number: int = APPLICATION_ERROR):
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.number = number


class MalformedMessage(ValueError):
    """A line that is no JSON-RPC message."""


def _line(message: dict[str, Any]) -> bytes:
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
    line = text.encode("utf-8", "surrogatepass") + b"\n"  # names of files are not UTF-8 everywhere; json.loads takes it
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
    data = {"code": error.code, "hint": error.hint}
    return _line({"jsonrpc": "2.0", "id": id, "error": {"code": error.number, "message": error.message, "data": data}})


def error_of(message: dict[str, Any]) -> RpcError:
    """The error in a response that holds one."""
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
    )


def parse(line: bytes) -> dict[str, Any]:
    """One message out of one line.

    Raises MalformedMessage for anything that is not a JSON object marked as JSON-RPC 2.0.
    """
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
