import json

import pytest

from reprolib.errors import EvidenceError
from reprolib.evidence import download, public

STUDY = "leakage_gemini_judgments"


def test_without_data_the_committed_result_is_shown_and_said_to_be(monkeypatch):
    monkeypatch.setattr(download, "at_hand", lambda names: False)
    result = public.result(STUDY)
    assert not result.recomputed
    assert "was not at hand" in result.origin
    assert result.values["llama_student_rate"]["n"] == 805


def test_with_data_it_is_recomputed_and_agrees(mirror):
    result = public.result(STUDY)
    assert result.recomputed
    assert result.values["llama_student_rate"]["value"] == pytest.approx(100 * 194 / 805)  # counted independently
    assert result.values["second_shown_wins"] == pytest.approx(100 * 430 / 805)


def test_a_committed_result_that_does_not_follow_from_the_data_stops(mirror, project):
    path = project / "evidence/public" / f"{STUDY}.json"
    document = json.loads(path.read_text())
    document["values"]["llama_student_rate"]["n"] += 1
    path.write_text(json.dumps(document))
    with pytest.raises(EvidenceError, match=r"differ at llama_student_rate\.n: 806 and 805"):
        public.result(STUDY)


def test_a_result_of_other_data_than_pinned_is_refused(project):
    path = project / "evidence/public/sources.toml"
    path.write_text(path.read_text().replace("19fb5a6c", "00000000"))
    with pytest.raises(EvidenceError, match=r"other data than sources\.toml pins"):
        public.result(STUDY)


def test_rounding_noise_passes_and_a_real_change_does_not():
    assert public._difference({"a": [0.5, 1]}, {"a": [0.5001, 1]}) == ""
    assert public._difference({"a": [0.5, 1]}, {"a": [0.52, 1]}).startswith("a[0]")
    assert public._difference({"a": 1}, {"b": 1}) != ""
