"""Files that others released: pinned by commit and SHA-256, never committed; only `fetch` uses the network."""

import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pooch

from reprolib.errors import EvidenceError, pick
from reprolib.project import evidence_dir


class Source(NamedTuple):
    """One released file: where it is, its SHA-256, its size, and the licence its owner states."""

    about: str
    repository: str
    commit: str
    path: str
    sha256: str
    bytes: int
    licence: str

    @property
    def url(self) -> str:
        """Where `fetch` downloads it from."""
        return f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{self.path}"

    @property
    def place(self) -> Path:
        """Where it is kept: `$REPROLIB_MIRROR`/owner/repo/commit/path, else the same below the download cache."""
        folder = os.environ.get("REPROLIB_MIRROR") or pooch.os_cache("reprolib")
        return Path(folder, self.repository, self.commit, self.path)


def sources() -> dict[str, Source]:
    """Every pinned file by name, from `evidence/public/sources.toml`."""
    table = tomllib.loads((evidence_dir() / "public" / "sources.toml").read_text())
    return {name: Source(**entry) for name, entry in table.items()}


def locate(name: str) -> Path | None:
    """The file `name` if it is at hand; EvidenceError if the mirror lacks it or its SHA-256 is another one."""
    item = pick("pinned file", name, sources())
    if not item.place.is_file():
        if os.environ.get("REPROLIB_MIRROR"):
            raise EvidenceError(f"REPROLIB_MIRROR has no {name}", hint=f"put it at {item.place}, or unset the mirror")
        return None
    if pooch.file_hash(item.place) != item.sha256:
        hint = f"delete it and run: reprolib fetch {name}"
        raise EvidenceError(f"{item.place} is not {name}: its SHA-256 differs from the pinned one", hint=hint)
    return item.place


def at_hand(names: Iterable[str]) -> bool:
    """Whether every named file can be read now, without the network; a damaged one is still an error."""
    return all(locate(name) for name in names)


def fetch(names: Iterable[str] = ()) -> dict[str, Path]:
    """Paths of the named files (default: all), downloaded if need be, else EvidenceError."""
    pooch.get_logger().setLevel("WARNING")  # it would log the whole path on every call
    found = {}
    for name in names or sources():
        if (path := locate(name)) is None:
            item = sources()[name]
            try:
                path = Path(pooch.retrieve(item.url, item.sha256, item.place.name, item.place.parent))
            except Exception as error:  # pooch hands on what its transport raised: requests, urllib3 or OSError
                failed = f"download of {item.url} failed ({type(error).__name__})"
                reason = "the download is not the pinned one" if isinstance(error, ValueError) else failed
                hint = "nothing was kept; check the network, or set REPROLIB_MIRROR to a folder with it"
                raise EvidenceError(f"{name}: {reason}", hint=hint) from error
        found[name] = path
    return found
