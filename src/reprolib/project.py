"""Where the project is: the folder that holds `evidence/`, `notebooks/` and `book/`. The first match wins:

1. `$REPROLIB_ROOT`, if set;
2. the current folder or the nearest one above it that holds `evidence/claims.toml`;
3. the checkout that an editable installation points at;
4. the copy of `evidence/` inside the installed package (statistics only: it has no notebooks).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from reprolib.errors import EvidenceError

_MARK = Path("evidence", "claims.toml")


def root() -> Path:
    """The project's root folder; EvidenceError if `$REPROLIB_ROOT` holds no project, or nothing matches."""
    if named := os.environ.get("REPROLIB_ROOT"):
        if (Path(named) / _MARK).is_file():
            return Path(named).resolve()
        raise EvidenceError(f"REPROLIB_ROOT is {named!r}, which holds no {_MARK}", hint="unset it or name a checkout")
    package, here = Path(__file__).resolve().parent, Path.cwd()
    for folder in [here, *here.parents, package.parents[1], package / "_project"]:
        if (folder / _MARK).is_file():
            return folder.resolve()
    raise EvidenceError(f"found no {_MARK}", hint="run inside a checkout, or set REPROLIB_ROOT to one")


def evidence_dir() -> Path:
    """The folder `evidence/` of the project."""
    return root() / "evidence"


def files_below(folder: Path) -> list[Path]:
    """Every file of the project below a folder, sorted (no caches, no installation metadata, no hidden file)."""
    files = [f for f in folder.rglob("*") if f.is_file()]
    return sorted(f for f in files if not re.search(r"(^|/)(\.|__pycache__)", str(f.relative_to(folder))))


def digest_of(parts: Iterable[bytes]) -> str:
    """One SHA-256 over several pieces; where one ends and the next begins counts."""
    digests = (hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def digest_of_files(files: Iterable[Path]) -> str:
    """One SHA-256 over the names and contents of files below the root."""
    base = root()
    return digest_of(part for f in files for part in (str(f.relative_to(base)).encode(), f.read_bytes()))


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader, or a kill, never meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)
