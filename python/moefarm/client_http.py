"""HTTP transport of moefarm.Client: requests with retries and limits, standard library only.

A connection belongs to one thread. It connects directly, without the proxies of the environment, and follows
no redirect, so that the access token reaches no other host."""
from __future__ import annotations

import dataclasses
import http.client
import ipaddress
import json
import os
import ssl
import time
import urllib.parse
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

REPLY_MAX = 256 << 20  # bytes, enough for the table of a large fleet
TOKEN_FILE_MAX = 4096  # bytes
ATTEMPTS = 4
WAIT_MAX_S = 30.0  # longest pause before a request is sent again
BUSY = (429, 503)  # the farm did not process the request
_CHUNK = 1 << 16


class ClientError(Exception):
    """The farm did not answer, or the answer cannot be used."""


@dataclasses.dataclass(frozen=True)
class FieldError:
    """One refused field or row of a request. `line` is the line of the CSV, or 0."""

    at: str
    code: str
    message: str
    line: int = 0

    def __str__(self) -> str:
        """
        >>> str(FieldError("topk", "range", "topk 0: expected 1 to 127", line=3))
        'line 3: topk: topk 0: expected 1 to 127'
        """
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.at}: {self.message}" if self.at else f"{place}{self.message}"


class ApiError(ClientError):
    """The farm refused a request. `status` is the HTTP status, `detail` the farm's message, and `errors`
    lists the refused fields."""

    def __init__(self, request: str, status: int, detail: str, errors: Tuple[FieldError, ...] = ()) -> None:
        lines = [str(error) for error in errors if error.line or error.message != detail]
        super().__init__("\n  ".join([f"{request}: {detail} (HTTP status {status})", *lines]))
        self.status, self.detail, self.errors = status, detail, errors


@dataclasses.dataclass(frozen=True)
class Reply:
    request: str  # "GET URL", for messages
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise ClientError(f"{self.request}: the reply is not JSON; check that the URL is moefarmd's"
                              ) from None

    def text(self) -> str:
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            raise ClientError(f"{self.request}: the reply is not UTF-8 text; check that the URL is moefarmd's"
                              ) from None


def read_token(token: Optional[str], token_file: Optional[Union[str, os.PathLike[str]]]) -> str:
    """Returns the access token: an argument, or that of MOEFARM_TOKEN_FILE or MOEFARM_TOKEN, or ""."""
    if token is None:
        token_file = token_file or os.environ.get("MOEFARM_TOKEN_FILE")
        if token_file:
            with open(token_file, "rb") as file:
                token = file.read(TOKEN_FILE_MAX).decode("ascii", "replace")
        else:
            token = os.environ.get("MOEFARM_TOKEN", "")
    token = token.strip()
    if not all("!" <= letter <= "~" for letter in token):
        raise ValueError(f"{token_file or 'token'}: not an access token; create one with `moefarm token`")
    return token


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("localhost"), is_loopback("127.8.0.1"), is_loopback("::1")
    (True, True, True)
    >>> is_loopback("localhost.example.org"), is_loopback("10.0.0.1")
    (False, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tls(ca_file: Optional[Union[str, os.PathLike[str]]]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=os.fspath(ca_file) if ca_file else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _problem(reply: Reply) -> ApiError:
    """Reads problem+json, or a proxy's own text."""
    try:
        body = json.loads(reply.body)
        errors = tuple(FieldError(str(e["at"]), str(e["code"]), str(e["message"]), int(e.get("line", 0)))
                       for e in body.get("errors", []))
        return ApiError(reply.request, reply.status, str(body.get("detail") or body["title"]), errors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ApiError(reply.request, reply.status, "request refused by another server than moefarmd")


def _pause(attempt: int, reply: Optional[Reply]) -> float:
    """Returns the seconds to wait before the next attempt."""
    try:
        return min(float((reply.headers if reply else {})["retry-after"]), WAIT_MAX_S)
    except (KeyError, ValueError):
        return 0.2 * float(1 << attempt)


def _target(path: str, query: Optional[Mapping[str, Any]]) -> str:
    values: List[Tuple[str, str]] = []
    for name, value in (query or {}).items():
        if value is not None:
            values.append((name, str(int(value)) if isinstance(value, bool) else str(value)))
    return path + ("?" + urllib.parse.urlencode(values) if values else "")


def _advice(method: str, error: Exception) -> str:
    """Says what to do after the last attempt of a request."""
    if isinstance(error, ConnectionRefusedError):
        return "check that moefarmd runs there"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "check the CA file (ca_file, MOEFARM_CA) and the host name of the certificate"
    if method == "GET":
        return "try again later"
    return "check whether the farm executed the request before you repeat it"


class Connection:
    """Sends requests to one farm, one at a time, and keeps the connection open between them."""

    def __init__(self, url: str, token: str, ca_file: Optional[Union[str, os.PathLike[str]]],
                 timeout_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ValueError(f"url {url!r}: expected https://host:port, or http:// for this machine")
        if token and parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError(f"url {url}: would send the token unencrypted; use https://")
        self.url = url.rstrip("/")
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._tls = _tls(ca_file) if parts.scheme == "https" else None
        self._headers = {"User-Agent": "moefarm-python", "Accept-Encoding": "identity"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s
        self._http: Optional[http.client.HTTPConnection] = None

    def close(self) -> None:
        if self._http:
            self._http.close()
        self._http = None

    def send(self, method: str, path: str, query: Optional[Mapping[str, Any]] = None,
             body: Optional[bytes] = None, headers: Optional[Mapping[str, str]] = None,
             repeatable: bool = False) -> Reply:
        """Sends a request and returns the reply if its status is 2xx or 304. If the connection breaks, sends
        the request again only if it is repeatable: a GET, or a POST that has no effect the second time.
        Raises ApiError if the farm refuses the request, ClientError if it does not answer in time."""
        target = _target(path, query)
        end = time.monotonic() + self._timeout_s
        repeatable = repeatable or method == "GET"
        if not repeatable:
            self.close()  # the farm may be about to close an idle connection
        for attempt in range(ATTEMPTS):
            reply = None
            try:
                reply = self._once(method, target, body, headers or {}, end)
                if reply.status == 304 or 200 <= reply.status < 300:
                    return reply
                failure: ClientError = _problem(reply)
                again = reply.status in BUSY
            except (OSError, http.client.HTTPException) as error:
                self.close()
                failure = ClientError(f"{self._name(method, target)}: {error or type(error).__name__}; "
                                      f"{_advice(method, error)}")
                # A refused connection has sent nothing.
                again = (repeatable or isinstance(error, ConnectionRefusedError)) and not isinstance(
                    error, ssl.SSLCertVerificationError)
            pause = _pause(attempt, reply)
            if not again or attempt + 1 == ATTEMPTS or time.monotonic() + pause >= end:
                raise failure
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _name(self, method: str, target: str) -> str:
        """The request in messages."""
        return f"{method} {self.url}{target}"

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s,
                                               context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def _once(self, method: str, target: str, body: Optional[bytes], headers: Mapping[str, str],
              end: float) -> Reply:
        if not self._http:
            self._http = self._connect()
        connection = self._http
        if connection.sock:
            connection.sock.settimeout(max(end - time.monotonic(), 0.001))
        connection.request(method, self._prefix + target, body=body, headers={**self._headers, **headers})
        response = connection.getresponse()
        chunks, n = [], 0
        while chunk := response.read1(_CHUNK):
            chunks.append(chunk)
            n += len(chunk)
            if n > REPLY_MAX:
                self.close()
                raise ClientError(f"{self._name(method, target)}: the reply exceeds {REPLY_MAX >> 20} MiB")
            if time.monotonic() > end:
                raise TimeoutError(f"no complete reply in {self._timeout_s:g} s")
        response.close()
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        names: Dict[str, str] = {name.lower(): value for name, value in response.getheaders()}
        if response.will_close:
            self.close()
        return Reply(self._name(method, target), response.status, names, b"".join(chunks))
