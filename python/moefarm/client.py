"""Client of a farm: the REST API (docs/api.md) from Python 3.10, standard library only.

    import moefarm

    farm = moefarm.Client()                                # MOEFARM_URL, MOEFARM_TOKEN_FILE, MOEFARM_CA
    receipt = farm.submit("untuned_fmoe.csv", topk=8)
    batch = farm.wait(receipt.batch, progress=print)
    print(farm.export(batch=batch.id).text)

examples/nightly.py is a complete job. If the farm refuses a request, methods raise ApiError with the
farm's message: the field, its value and how to correct it. If the farm does not answer, they raise
ClientError. After a broken connection, the client repeats only requests that have no effect the second
time: GETs, freezes and POSTs with an idempotency key."""
from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pathlib
import re
import time
import uuid
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Type, TypeVar, Union
from urllib.parse import quote

from moefarm.client_http import ApiError, ClientError, Connection, FieldError, Reply, read_token
from moefarm.client_results import (Batch, Channel, Configs, LeftOut, Lookup, Miss, MissBatch, ModelLayer,
                                    Moved, NewRelease, Pipeline, Pulled, Receipt, Rejection, Release,
                                    ReleaseDiff, Table, Task, Worker, read)

__all__ = ["ApiError", "Client", "ClientError", "FieldError", "WaitTimeout"]

URL = "http://127.0.0.1:8080"
API = "/api/v1"
BODY_MAX = 16 << 20  # bytes; the farm's limit for a request
FILE_MAX = 64 << 20  # bytes of a table
CHECKPOINT = ("config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json",
              "params.json", "model.safetensors.index.json")
PAGE = 1000
LOCK_S = 30.0
LONGEST_POLL_S = 2.0

T = TypeVar("T")
Path = Union[str, "os.PathLike[str]"]
Shapes = Union[Path, Sequence[Mapping[str, Any]]]


class WaitTimeout(ClientError):
    """A batch did not end in time. `batch` is its last state."""

    def __init__(self, batch: Batch, timeout_s: float) -> None:
        super().__init__(f"batch {batch.id} did not end in {timeout_s:g} s: {batch.done} of {batch.tasks} "
                         f"tasks are done" + "".join(f"; {w.tasks} wait: {w.reason}" for w in batch.waiting))
        self.batch = batch


def _read_file(path: Path, limit: int) -> bytes:
    with open(path, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{os.fspath(path)}: more than {limit >> 20} MiB, the farm's limit for a request")
    return data


def _checkpoint(path: pathlib.Path) -> Dict[str, str]:
    """Texts of the files that describe a checkpoint's layers, by name; empty if `path` does not exist. A file
    whose name is not in CHECKPOINT is read as a config.json."""
    if path.is_file() and path.name not in CHECKPOINT:
        return {CHECKPOINT[0]: _read_file(path, BODY_MAX).decode()}
    folder = path if path.is_dir() else path.parent
    if not path.exists():
        return {}
    return {name: _read_file(folder / name, BODY_MAX).decode() for name in CHECKPOINT
            if (folder / name).is_file()}


def _segment(name: str) -> str:
    """A release's or channel's name as a part of a path.

    >>> _segment("../x")
    Traceback (most recent call last):
    ValueError: name '../x': expected 1 to 63 letters, digits, '.', '_' and '-', not starting with '.'
    """
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}", name):
        raise ValueError(f"name {name!r}: expected 1 to 63 letters, digits, '.', '_' and '-', not starting "
                         "with '.'")
    return quote(name)


def _check_hash(reply: Reply) -> str:
    """Compares the reply with its ETag, the SHA-256 of the body. Returns the hash."""
    sha256 = hashlib.sha256(reply.body).hexdigest()
    if reply.headers.get("etag", "").removeprefix("W/") != f'"{sha256}"':
        raise ClientError(f"{reply.request}: the reply was cut or changed on the way: its SHA-256 is "
                          f"{sha256}, its ETag {reply.headers.get('etag')}; try again, or check for a "
                          "proxy that changes replies")
    return sha256


class _Lock:
    """Holds the lock PATH.lock, which moefarm's programs take before they replace the table PATH."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = f"{path}.lock"

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        end = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    os.close(self._fd)
                    raise TimeoutError(f"{self._path}: another program has held the lock for {LOCK_S:g} s"
                                       ) from None
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _replace(path: pathlib.Path, data: bytes) -> None:
    """Writes the file atomically; the caller holds the lock. A crash leaves the old or the new file."""
    part = path.with_name(f".{path.name}.next")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as file:
        if path.exists():
            os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


class Client:
    """A connection to moefarmd, for one thread.

    url: "https://farm:8443" (default: MOEFARM_URL, else this machine's farm). token or token_file: the access
    token (default: MOEFARM_TOKEN_FILE, MOEFARM_TOKEN, or none). ca_file: CA certificate, PEM (default:
    MOEFARM_CA, else the system's). timeout_s: limit of one request with its retries.

    >>> Client("http://farm:8080", token="moefarm_1_x")
    Traceback (most recent call last):
    ValueError: url http://farm:8080: would send the token unencrypted; use https://
    """

    def __init__(self, url: Optional[str] = None, *, token: Optional[str] = None,
                 token_file: Optional[Path] = None, ca_file: Optional[Path] = None,
                 timeout_s: float = 120.0) -> None:
        self._connection = Connection(url or os.environ.get("MOEFARM_URL") or URL,
                                      read_token(token, token_file),
                                      ca_file or os.environ.get("MOEFARM_CA") or None, timeout_s)

    def __repr__(self) -> str:
        return f"Client({self._connection.url!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. The next request opens a new one."""
        self._connection.close()

    # ---- requests ----

    def _get(self, path: str, query: Optional[Mapping[str, Any]] = None,
             headers: Optional[Mapping[str, str]] = None) -> Reply:
        return self._connection.send("GET", API + path, query, headers=headers)

    def _find(self, kind: Type[T], path: str, query: Optional[Mapping[str, Any]] = None) -> Optional[T]:
        """Gets an object. None: the farm has no such object."""
        try:
            return read(kind, self._get(path, query).json())
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _list(self, kind: Type[T], path: str, query: Optional[Mapping[str, Any]] = None) -> Iterator[T]:
        cursor: Optional[str] = None
        while True:
            reply = self._get(path, {**(query or {}), "limit": PAGE, "cursor": cursor})
            page = reply.json()
            if not isinstance(page, dict) or not isinstance(page.get("items"), list):
                raise ClientError(f"{reply.request}: the reply is not a list; check that the URL is "
                                  "moefarmd's")
            for item in page["items"]:
                yield read(kind, item, "item")
            cursor = page.get("next")
            if not cursor:
                return

    def _post(self, path: str, query: Optional[Mapping[str, Any]] = None, body: Any = None,
              key: Optional[str] = None, repeatable: bool = False) -> Any:
        """Sends `body` as JSON. With an idempotency key, the request can be repeated."""
        headers, data = {}, b""
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
            if len(data) > BODY_MAX:
                raise ValueError(f"the request has {len(data) >> 20} MiB, the farm's limit is "
                                 f"{BODY_MAX >> 20} MiB; submit fewer rows")
        if key:
            headers["Idempotency-Key"] = key
        return self._connection.send("POST", API + path, query, data, headers,
                                     repeatable or key is not None).json()

    def workers(self) -> Iterator[Worker]:
        """Lists the workers and their devices."""
        return self._list(Worker, "/workers")

    # ---- batches ----

    def submit(self, shapes: Shapes, *, name: Optional[str] = None, baseline: Optional[Path] = None,
               idempotency_key: Optional[str] = None, **options: Any) -> Receipt:
        """Submits shapes to tune: the path of an untuned_fmoe.csv, or rows as mappings with its columns.
        `options` are the batch options of docs/api.md, such as classes=["sm_90/132"], topk=8. `baseline` is
        the path of a deployed table: a new row must win against its row. The same idempotency key never
        creates a second batch (default: a new key)."""
        body: Dict[str, Any] = {"options": options}
        if isinstance(shapes, (str, os.PathLike)):
            body["csv"] = _read_file(shapes, BODY_MAX).decode()
            name = name or os.path.basename(os.fspath(shapes))
        else:
            body["shapes"] = [dict(shape) for shape in shapes]
        if name:
            body["name"] = name
        if baseline is not None:
            body["baseline"] = _read_file(baseline, BODY_MAX).decode()
        return read(Receipt, self._post("/batches", body=body, key=idempotency_key or uuid.uuid4().hex))

    def model_layer(self, model: Path, *, tp: int = 1, ep: int = 1, fused_shared: int = 0,
                    class_: Optional[str] = None) -> ModelLayer:
        """Reads the MoE layer of a model as one rank runs it. `model` is a config.json, the folder of a
        checkpoint, or a name that `moefarm csv coverage --list-models` lists. `class_` selects the fp8 type.

            layer = farm.model_layer("checkpoint/config.json", tp=8)
            farm.submit(layer.rows(tokens=[1, 2, 4, 8]), name=layer.name)
        """
        body: Dict[str, Any] = {"tp": tp, "ep": ep, "fused_shared": fused_shared}
        files = _checkpoint(pathlib.Path(model))
        if files:
            body.update(files=files, name=os.fspath(model))
        else:
            body["model"] = os.fspath(model)
        if class_:
            body["class"] = class_
        return read(ModelLayer, self._post("/models/layer", body=body, repeatable=True))

    def batches(self) -> Iterator[Batch]:
        """Lists all batches, newest first."""
        return self._list(Batch, "/batches")

    def batch(self, batch: int) -> Batch:
        """Gets the progress of a batch, and what its tasks wait for."""
        return read(Batch, self._get(f"/batches/{int(batch)}").json())

    def wait(self, batch: int, progress: Optional[Callable[[Batch], object]] = None,
             timeout_s: Optional[float] = None) -> Batch:
        """Waits until the batch is done or cancelled, and returns its last state. Calls `progress` with the
        batch when something changed. Raises WaitTimeout after `timeout_s` seconds; the batch continues."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        last, pause = None, 0.1
        while True:
            state = self.batch(batch)
            if progress and state != last:
                progress(state)
            if state.has_ended:
                return state
            if end is not None and time.monotonic() >= end:
                raise WaitTimeout(state, timeout_s or 0.0)
            time.sleep(pause if end is None else min(pause, max(end - time.monotonic(), 0.0)))
            last, pause = state, min(pause * 1.5, LONGEST_POLL_S)

    def cancel(self, batch: int) -> None:
        """Cancels the unfinished tasks of a batch. ApiError 409: the batch has ended."""
        self._post(f"/batches/{int(batch)}/cancel")

    def tasks(self, batch: int, state: Optional[str] = None) -> Iterator[Task]:
        """Lists the tasks of a batch, one per shape and device class."""
        return self._list(Task, f"/batches/{int(batch)}/tasks", {"state": state})

    # ---- tasks ----

    def rank(self, task: int, *, consumer: Optional[str] = None, finalists: bool = False
             ) -> Iterator[Pipeline]:
        """Lists the pipelines of a task: raced pipelines by time, then the others by forecast."""
        return self._list(Pipeline, f"/tasks/{int(task)}/pipelines",
                          {"consumer": consumer, "finalists": finalists or None})

    def why(self, task: int, kernel: Optional[str] = None) -> Iterator[Rejection]:
        """Lists the kernels that are not in the result of a task, with reasons. `kernel` is a glob."""
        return self._list(Rejection, f"/tasks/{int(task)}/rejections", {"kernel": kernel})

    # ---- results ----

    def export(self, **filters: Any) -> Table:
        """Exports the tuned table. Filters of docs/api.md: batch, class_ (or gfx, model), layer_model,
        consumer, simulated, provenance."""
        reply = self._get("/export/tuned_fmoe.csv", _filters(filters))
        left_out = reply.headers.get("moefarm-left-out", "")
        return Table(reply.text(), _check_hash(reply), int(left_out) if left_out.isdecimal() else 0)

    def left_out(self, **filters: Any) -> Iterator[LeftOut]:
        """Lists the rows that an export with these filters leaves out."""
        return self._list(LeftOut, "/export/left_out", _filters(filters))

    def configs(self, consumer: str, **filters: Any) -> Configs:
        """Exports the configuration files of `vllm` or `sglang`."""
        reply = self._get("/export/configs.json", _filters({**filters, "consumer": consumer}))
        _check_hash(reply)
        return read(Configs, reply.json())

    def lookup(self, layer: str, token: int, class_: str, *, consumer: Optional[str] = None,
               model: Optional[str] = None, simulated: bool = False) -> Optional[Lookup]:
        """Looks up the row or configuration that serves a call. `layer` is a shape's row without its token
        count. None: no row serves the call."""
        query = {"layer": layer, "token": token, "class": class_, "consumer": consumer, "model": model,
                 "simulated": simulated or None}
        return self._find(Lookup, "/lookup", query)

    # ---- releases and channels ----

    def freeze(self, name: Optional[str] = None, **filters: Any) -> NewRelease:
        """Freezes an export as a release. The same name, filters and rows return the same release."""
        return read(NewRelease, self._post("/releases", {**_filters(filters), "name": name},
                                           repeatable=True))

    def releases(self, name: Optional[str] = None) -> Iterator[Release]:
        """Lists the releases, newest first; with `name`, only this one."""
        return self._list(Release, "/releases", {"name": name})

    def release_table(self, release: int) -> Table:
        """Gets the table of a release."""
        reply = self._get(f"/releases/{int(release)}/tuned_fmoe.csv")
        return Table(reply.text(), _check_hash(reply))

    def diff(self, release: int, against: Optional[int] = None) -> ReleaseDiff:
        """Compares a release with an older one (default: the previous release)."""
        return read(ReleaseDiff, self._get(f"/releases/{int(release)}/diff", {"against": against}).json())

    def channel(self, channel: str) -> Optional[Channel]:
        """Gets a channel. None: there is no such channel."""
        return self._find(Channel, f"/channels/{_segment(channel)}")

    def stage(self, channel: str, release: int, reason: Optional[str] = None) -> Moved:
        """Stages a release on a channel, which is created if missing."""
        return self._move(channel, "stage", release, reason)

    def approve(self, channel: str, release: int, reason: Optional[str] = None) -> Moved:
        """Makes the staged release current. Needs a token of role admin."""
        return self._move(channel, "approve", release, reason)

    def _move(self, channel: str, move: str, release: int, reason: Optional[str]) -> Moved:
        query = {"release": int(release), "reason": reason}
        return read(Moved, self._post(f"/channels/{_segment(channel)}/{move}", query))

    def pull(self, channel: str, path: Path, *, force: bool = False) -> Pulled:
        """Updates the table `path` to the current release of a channel, atomically and under the lock of
        moefarm's programs. The farm sends the table only if it differs. Without `force`, raises ValueError if
        the file is not a release of this farm, because it may have local changes."""
        file, channel = pathlib.Path(path).resolve(), _segment(channel)
        with _Lock(file):
            old = _read_file(file, FILE_MAX) if file.exists() else None
            sha256 = hashlib.sha256(old or b"").hexdigest()
            reply = self._get(f"/channels/{channel}/tuned_fmoe.csv",
                              headers={} if old is None else {"If-None-Match": f'"{sha256}"'})
            release = reply.headers.get("moefarm-release", "")
            if not re.match(r"\d+ ", release):
                raise ClientError(f"{reply.request}: the reply is not a release; check that the URL is "
                                  "moefarmd's")
            if reply.status == 304:
                return Pulled(release, False)
            self._check_release(reply, int(release.split()[0]))
            if old is not None and not force and not any(self._list(Release, "/releases",
                                                                    {"sha256": sha256})):
                raise ValueError(f"{file} is not a release of this farm: it was edited or merged into, or "
                                 "comes from another source; replace it with force=True")
            _replace(file, reply.body)
        return Pulled(release, True)

    def _check_release(self, reply: Reply, release: int) -> None:
        """Compares a table with the farm's record of the release, so that no cache can replace it."""
        sha256 = _check_hash(reply)
        record = read(Release, self._get(f"/releases/{release}").json())
        if record.sha256 != sha256:
            raise ClientError(f"{reply.request}: the reply is not the table of release {release}: its "
                              f"SHA-256 is {sha256}; check for a proxy that changes or caches replies")

    # ---- misses ----

    def misses(self, class_: Optional[str] = None, state: Optional[str] = None) -> Iterator[Miss]:
        """Lists the shapes that production looked up and did not find, most frequent first."""
        return self._list(Miss, "/misses", {"state": state, "class": class_})

    def submit_misses(self, class_: Optional[str] = None, *, min_count: Optional[int] = None,
                      failed: bool = False, priority: Optional[int] = None) -> List[MissBatch]:
        """Submits the open misses, one batch per device class and layout."""
        query = {"class": class_, "min_count": min_count, "failed": failed or None, "priority": priority}
        reply = self._post("/misses/submit", query)
        return [read(MissBatch, batch) for batch in reply["batches"]]


def _filters(filters: Mapping[str, Any]) -> Dict[str, Any]:
    """Filters of an export; `class_` is the farm's `class`, and a flag that is False is left out.

    >>> _filters({"class_": "sm_90/132", "simulated": False})
    {'class': 'sm_90/132'}
    """
    return {"class" if name == "class_" else name: value for name, value in filters.items()
            if value is not False}
