"""Where the project is: the folder that holds `evidence/`, `notebooks/` and `book/`; its files and their digests."""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from reprolib.errors import EvidenceError

_MARK = Path("evidence", "claims.toml")


def root() -> Path:
    """`$REPROLIB_ROOT` if set, else the first of these that holds `evidence/claims.toml`; EvidenceError if none does.

    The current folder and those above it, the checkout of an editable installation, the copy inside the package.
    """
    named, here, package = os.environ.get("REPROLIB_ROOT"), Path.cwd(), Path(__file__).resolve().parent
    places = [Path(named)] if named else [here, *here.parents, package.parents[1], package / "_project"]
    for folder in places:
        if (folder / _MARK).is_file():
            return folder.resolve()
    raise EvidenceError(f"no {_MARK} in {named or 'this folder or above'}", hint="set REPROLIB_ROOT to a checkout")


def evidence_dir() -> Path:
    """The folder `evidence/` of the project."""
    return root() / "evidence"


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, sorted: no caches, no hidden file."""
    files = [f for f in folder.rglob("*") if f.is_file()]
    return sorted(f for f in files if not re.search(r"(^|/)(\.|__pycache__)", str(f.relative_to(folder))))


def digest(files: Iterable[Path], *texts: str) -> str:
    """One SHA-256 over the names and contents of files below the root, and over texts."""
    base = root()
    parts = [part for f in files for part in (str(f.relative_to(base)).encode(), f.read_bytes())]
    ends = (hashlib.sha256(part).digest() for part in [*parts, *(text.encode() for text in texts)])
    return hashlib.sha256(b"".join(ends)).hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader, or a kill, never meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)
