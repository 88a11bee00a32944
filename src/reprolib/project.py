"""Where the project is: the folder that holds `evidence/`, `notebooks/` and `book/`.

The rule, first match wins:

1. `$REPROLIB_ROOT`, if set;
2. the current folder or the nearest one above it that holds `evidence/claims.toml`;
3. the checkout that an editable installation points at;
4. the copy of `evidence/` inside the installed package (statistics only: it has no notebooks).
"""

from __future__ import annotations

import os
from pathlib import Path

from reprolib.errors import EvidenceError

_MARK = Path("evidence", "claims.toml")


def root() -> Path:
    """The project's root folder by the rule of this module.

    Raises EvidenceError if `$REPROLIB_ROOT` holds no `evidence/claims.toml`, or nothing matches.
    """
    if named := os.environ.get("REPROLIB_ROOT"):
        if (Path(named) / _MARK).is_file():
            return Path(named).resolve()
        raise EvidenceError(f"REPROLIB_ROOT is {named!r}, which holds no {_MARK}", hint="unset it or name a checkout")
    package = Path(__file__).resolve().parent
    for folder in [*_upwards(Path.cwd()), package.parents[1], package / "_project"]:
        if (folder / _MARK).is_file():
            return folder.resolve()
    raise EvidenceError(f"found no {_MARK}", hint="run inside a checkout, or set REPROLIB_ROOT to one")


def evidence_dir() -> Path:
    """The folder `evidence/` of the project."""
    return root() / "evidence"


def _upwards(folder: Path) -> list[Path]:
    return [folder, *folder.parents]
