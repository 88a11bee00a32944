import hashlib
import http.server
import threading

import pooch
import pytest

from reprolib.errors import EvidenceError, ParameterError
from reprolib.evidence import download

CONTENT = b"released judgments"


@pytest.fixture
def pinned(project, monkeypatch, tmp_path):
    """One pinned file served on the loopback address; yields its source and the served folder."""
    served = tmp_path / "served"
    (served / "o/r/c").mkdir(parents=True)
    (served / "o/r/c/data.json").write_bytes(CONTENT)
    (project / "evidence/public/sources.toml").write_text(
        f'[demo]\nabout = "d"\nrepository = "o/r"\ncommit = "c"\npath = "data.json"\nbytes = {len(CONTENT)}\n'
        f'sha256 = "{hashlib.sha256(CONTENT).hexdigest()}"\nlicence = "none"\n'
    )
    monkeypatch.delenv("REPROLIB_MIRROR", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *a: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: handler(*a, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/o/r/c/data.json"
    monkeypatch.setattr(download.Source, "url", property(lambda self: url))
    yield served
    server.shutdown()


def test_fetch_downloads_once_and_locate_finds_it_offline(pinned):
    assert download.locate("demo") is None
    path = download.fetch(["demo"])["demo"]
    assert path.read_bytes() == CONTENT
    (pinned / "o/r/c/data.json").unlink()
    assert download.fetch(["demo"])["demo"] == download.locate("demo") == path


def test_wrong_bytes_are_refused_and_nothing_stays_on_disk(pinned, tmp_path):
    (pinned / "o/r/c/data.json").write_bytes(b"changed upstream")
    with pytest.raises(EvidenceError, match="not the pinned one; nothing was kept"):
        download.fetch(["demo"])
    assert [f for f in (tmp_path / "cache").rglob("*") if f.is_file()] == []


def test_unreachable_file_says_what_to_do(pinned):
    (pinned / "o/r/c/data.json").unlink()
    with pytest.raises(EvidenceError, match="set REPROLIB_MIRROR"):
        download.fetch(["demo"])


def test_mirror_serves_the_same_bytes_without_copying(pinned, monkeypatch):
    monkeypatch.setenv("REPROLIB_MIRROR", str(pinned))
    assert download.fetch(["demo"])["demo"] == pinned / "o/r/c/data.json"


def test_file_missing_from_the_mirror_names_the_place(pinned, monkeypatch):
    monkeypatch.setenv("REPROLIB_MIRROR", str(pinned))
    (pinned / "o/r/c/data.json").unlink()
    with pytest.raises(EvidenceError, match="REPROLIB_MIRROR has no demo; put it at"):
        download.locate("demo")


def test_damaged_file_at_hand_is_an_error_not_a_silent_download(pinned, monkeypatch):
    path = download.fetch(["demo"])["demo"]
    path.write_bytes(b"bit rot")
    with pytest.raises(EvidenceError, match="SHA-256 differs"):
        download.locate("demo")


def test_unknown_name_offers_the_known_ones(pinned):
    with pytest.raises(ParameterError, match="did you mean 'demo'"):
        download.fetch(["dema"])
