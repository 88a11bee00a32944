"""Judgments on disk: nothing finished is lost when the process is killed, nothing damaged is believed.

A folder of SQLite files in WAL mode, one for each writer, read as their union (from several machines: after all are
done). A row is committed before it counts as finished, carries a checksum, and is found by its key alone: a hash of
what determines the result (token ids, label ids, sampling settings and seed, weight digest, dtype). Library versions,
device and date stand beside it. A failed row is not a result: it is tried again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sqlite3
import uuid
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from reprolib.inference import JudgeError

_SCHEMA = """PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE IF NOT EXISTS judgments (
    key TEXT NOT NULL, status TEXT NOT NULL, value TEXT NOT NULL, checksum TEXT NOT NULL,
    versions TEXT NOT NULL, device TEXT NOT NULL, date TEXT NOT NULL, PRIMARY KEY (key, status))"""
_FINISHED = (
    "SELECT key, value, checksum FROM judgments WHERE status = 'done' AND key IN (SELECT value FROM json_each(?))"
)


def row_key(**fields: Any) -> str:
    """SHA-256 of what determines a result, independent of the order of the fields.

    >>> row_key(seed=0, ids=[1, 2]) == row_key(ids=[1, 2], seed=0) != row_key(ids=[1, 2], seed=1)
    True
    """
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


class Store:
    """A folder of finished judgments; `folder` is made if it is not there.

    `damaged` says what the last read did not believe: rows whose checksum is wrong, files that are no database.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> store.put({"k1": {"logp": -0.5}}, device="cpu")
    >>> Store(store.folder).get(["k1", "k2"])
    {'k1': {'logp': -0.5}}
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.damaged: list[str] = []
        self._writer: sqlite3.Connection | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JudgeError(f"{self.folder} cannot be a store: {error.strerror}", hint="name a folder") from error

    def get(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The finished values of those keys that have one, from all writers; damaged rows count as missing."""
        wanted = set(keys)
        found: dict[str, dict[str, Any]] = {}
        self.damaged = []
        for path in sorted(self.folder.glob("*.sqlite")):
            missing = json.dumps(sorted(wanted - set(found)))
            try:
                with closing(_connect(path)) as database:
                    for key, value, checksum in database.execute(_FINISHED, [missing]):
                        if checksum == _checksum(key, "done", value):
                            found[key] = json.loads(value)
                        else:
                            self.damaged.append(f"{path.name}: row {key[:12]} does not match its checksum")
            except sqlite3.DatabaseError as error:  # costs no more than the rows of this file that cannot be read
                self.damaged.append(f"{path.name}: {error}")
        return found

    def put(self, rows: Mapping[str, Mapping[str, Any]], *, device: str) -> None:
        """Commit finished rows; when this returns they survive the end of the process, however it comes."""
        self._write("done", {key: json.dumps(value, sort_keys=True) for key, value in rows.items()}, device)

    def fail(self, keys: Iterable[str], reason: str, *, device: str) -> None:
        """Note in the file why these rows failed (status "failed"); they stay missing, and are tried again."""
        self._write("failed", dict.fromkeys(keys, json.dumps(reason)), device)

    def close(self) -> None:
        """Close this writer's file, which folds its write-ahead log into it."""
        if self._writer:
            self._writer.close()
        self._writer = None

    def _write(self, status: str, rows: Mapping[str, str], device: str) -> None:
        if self._writer is None:  # the file appears with the first row, so that a run with nothing to do leaves none
            name = f"{platform.node() or 'host'}-{os.getpid()}-{uuid.uuid4().hex[:8]}.sqlite"
            self._writer = _connect(self.folder / name)
        beside = json.dumps(versions()), device, datetime.now(UTC).isoformat(timespec="seconds")
        values = [(key, status, value, _checksum(key, status, value), *beside) for key, value in rows.items()]
        with self._writer:
            self._writer.executemany("INSERT OR REPLACE INTO judgments VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def _connect(path: Path) -> sqlite3.Connection:
    """A connection in WAL mode; every commit is on disk before it returns."""
    database = sqlite3.connect(path, timeout=60)
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")  # damaged text must reach the checksum
    database.executescript(_SCHEMA)
    return database


def versions() -> dict[str, str]:
    """Versions of the libraries that can move a number."""
    found = {"python": platform.python_version()}
    for package in ("reprolib", "torch", "transformers", "tokenizers", "numpy"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _checksum(key: str, status: str, value: str) -> str:
    return hashlib.sha256(f"{key}\n{status}\n{value}".encode()).hexdigest()
