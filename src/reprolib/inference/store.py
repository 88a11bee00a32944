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
from contextlib import closing
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

_SCHEMA = """PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE IF NOT EXISTS judgments (
    key TEXT NOT NULL, status TEXT NOT NULL, value TEXT NOT NULL, checksum TEXT NOT NULL,
    versions TEXT NOT NULL, device TEXT NOT NULL, date TEXT NOT NULL, PRIMARY KEY (key, status))"""
_DONE = "SELECT key, value, checksum FROM judgments WHERE status = 'done' AND key IN (SELECT value FROM json_each(?))"


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
        self.folder.mkdir(parents=True, exist_ok=True)
        self.damaged: list[str] = []

    def get(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The finished values of those keys that have one, from all writers; damaged rows count as missing."""
        wanted = set(keys)
        found: dict[str, dict[str, Any]] = {}
        self.damaged = []
        for path in sorted(self.folder.glob("*.sqlite")):
            missing = json.dumps(sorted(wanted - set(found)))
            try:
                with closing(_connect(path)) as database:
                    for key, value, checksum in database.execute(_DONE, [missing]):
                        if checksum == _checksum(key, "done", value):
                            found[key] = json.loads(value)
                        else:
                            self.damaged.append(f"{path.name}: row {key[:12]} does not match its checksum")
            except sqlite3.DatabaseError as error:  # costs no more than the rows of this file that cannot be read
                self.damaged.append(f"{path.name}: {error}")
        return found

    def put(self, rows: Mapping[str, Any], *, device: str, status: str = "done") -> None:
        """Commit rows; when this returns they survive the end of the process, however it comes.

        With the status "failed" they only say why there is no result: they stay missing, and are tried again.
        """
        beside = json.dumps(versions()), device, datetime.now(UTC).isoformat(timespec="seconds")
        texts = {key: json.dumps(value, sort_keys=True) for key, value in rows.items()}
        values = [(key, status, text, _checksum(key, status, text), *beside) for key, text in texts.items()]
        with self._writer:
            self._writer.executemany("INSERT OR REPLACE INTO judgments VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    @cached_property
    def _writer(self) -> sqlite3.Connection:  # made with the first row: a run with nothing to do leaves no file
        return _connect(self.folder / f"{platform.node() or 'host'}-{os.getpid()}-{uuid.uuid4().hex[:8]}.sqlite")


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=60)
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")  # damaged text must reach the checksum
    database.executescript(_SCHEMA)
    return database


def versions() -> dict[str, str]:
    """Versions of the libraries that can move a number."""
    packages = ("reprolib", "torch", "transformers", "tokenizers", "numpy")
    return {"python": platform.python_version()} | {package: version(package) for package in packages}


def _checksum(key: str, status: str, value: str) -> str:
    return hashlib.sha256(f"{key}\n{status}\n{value}".encode()).hexdigest()
