"""Files that others released: pinned by commit and SHA-256, fetched on request, never committed.

Only `fetch` uses the network. Reports and tests use `locate`, which looks at what is already at hand.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pooch

from reprolib.errors import EvidenceError
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

    def below(self, folder: str | Path) -> Path:
        """Its place in a mirror or cache."""
        return Path(folder, self.repository, self.commit, self.path)


def sources() -> dict[str, Source]:
    """Every pinned file by name, from `evidence/public/sources.toml`."""
    table = tomllib.loads((evidence_dir() / "public" / "sources.toml").read_text())
    return {name: Source(**entry) for name, entry in table.items()}


def source(name: str) -> Source:
    """The pinned file `name`; EvidenceError if there is none."""
    known = sources()
    if name not in known:
        raise EvidenceError(f"no pinned file {name!r}", hint=f"allowed: {', '.join(known)}")
    return known[name]


def locate(name: str) -> Path | None:
    """The file `name` if it is at hand, without using the network.

    With `REPROLIB_MIRROR=DIR` only DIR/owner/repo/commit/path counts, else only the download cache. Raises
    EvidenceError if the mirror lacks the file, or the file at hand has another SHA-256.
    """
    item, mirror = source(name), os.environ.get("REPROLIB_MIRROR")
    path = item.below(mirror or pooch.os_cache("reprolib"))
    if not path.is_file():
        if mirror:
            raise EvidenceError(f"REPROLIB_MIRROR has no {name}", hint=f"put it at {path}, or unset REPROLIB_MIRROR")
        return None
    if _sha256(path, path.stat().st_mtime_ns) != item.sha256:
        hint = "replace it" if mirror else f"delete it and run: reprolib fetch {name}"
        raise EvidenceError(f"{path} is not {name}: its SHA-256 differs from the pinned one", hint=hint)
    return path


def at_hand(names: Iterable[str]) -> bool:
    """Whether every named file can be read now, without the network; a damaged one is still an error."""
    return all(locate(name) for name in names)


def fetch(names: Iterable[str] = ()) -> dict[str, Path]:
    """Paths of the named files (default: all), downloaded if need be.

    Raises EvidenceError if a download fails or has another digest than the pinned one; such a file is not kept.
    """
    return {name: locate(name) or _download(name) for name in names or sources()}


def _download(name: str) -> Path:
    item = source(name)
    path = item.below(pooch.os_cache("reprolib"))
    pooch.get_logger().setLevel("WARNING")  # it would log the whole path on every call
    try:
        pooch.retrieve(item.url, f"sha256:{item.sha256}", fname=path.name, path=path.parent, progressbar=False)
    except ValueError as error:
        raise EvidenceError(f"{name}: the download is not the pinned one", hint="nothing was kept") from error
    except Exception as error:  # pooch hands on what its transport raised: requests, urllib3 or OSError
        message = f"{name}: download of {item.url} failed ({type(error).__name__})"
        raise EvidenceError(message, hint="check the network, or set REPROLIB_MIRROR to a folder with it") from error
    return path


@cache
def _sha256(path: Path, _modified: int) -> str:
    return str(pooch.file_hash(str(path), alg="sha256"))
