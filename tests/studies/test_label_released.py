"""The released fields mean what we say: recomputed in plain loops, and on made-up files with a known answer."""

import csv
import json
import math
from collections import defaultdict
from statistics import mean

import numpy as np
import pandas as pd
import pytest

from reprolib.evidence import download, public, recipe

study = recipe("label_released")
COMPANY = {"Claude": "Anthropic", "GPT": "OpenAI", "Llama": "Meta", "Mistral": "Mistral AI"}  # by how a name begins
FILES = {"faithfulness": "label_favorites_faithfulness", "correctness": "label_favorites_correctness"}


@pytest.fixture(scope="module")
def favorites():
    return public.result("label_play_favorites").values


@pytest.fixture(scope="module")
def labels():
    return public.result("label_panickssery").values


def rows_of(name):
    with download.fetch([name])[name].open(newline="") as file:
        return list(csv.DictReader(file))


def company(model):
    return next(maker for start, maker in COMPANY.items() if study.MODELS[model].startswith(start))


def only(entries, **wanted):
    (entry,) = [x for x in entries if all(x[k] == v for k, v in wanted.items())]
    return entry


@pytest.mark.usefixtures("mirror")
@pytest.mark.parametrize("dimension", FILES)
class TestPlayFavorites:
    def test_every_released_row_is_counted(self, favorites, dimension):
        rows, counts = rows_of(FILES[dimension]), favorites[dimension]["counts"]
        assert counts["rows"] == len(rows)
        assert counts["unparsed"] == sum(not x["rating"].isdigit() for x in rows)
        assert sum(favorites[dimension]["ratings"].values()) == len(rows) - counts["unparsed"] - counts["off_scale"]
        assert sum(map(sum, counts["missing"])) == 81 * counts["prompts"] - len(rows)

    def test_gaps_cells_and_human_means_are_those_of_plain_loops(self, favorites, dimension):
        rows, found = rows_of(FILES[dimension]), favorites[dimension]
        human = {(x["model"], x["prompt_id"]): float(x["gt"]) for x in rows}
        for j, judge in enumerate(study.MODELS):
            own, rest = [], []
            for x in rows:
                if x["judge"] == judge:
                    (own if x["model"] == judge else rest).append((float(x["rating"]), float(x["gt"])))
            entry = found["judges"][j]
            gap, human_gap = (mean(x[k] for x in own) - mean(x[k] for x in rest) for k in (0, 1))
            measured = [entry[k]["value"] for k in ("gap", "human_gap", "excess")]
            assert measured == pytest.approx([gap, human_gap, gap - human_gap], abs=1e-5)
            assert all(entry[k]["low"] < entry[k]["value"] < entry[k]["high"] for k in ("gap", "contrast"))
            cell = mean(float(x["rating"]) for x in rows if x["judge"] == x["model"] == judge)
            assert found["matrix"][j][j] == pytest.approx(cell, abs=1e-4)
            assert found["human"][j] == pytest.approx(mean(v for k, v in human.items() if k[0] == judge), abs=1e-4)

    def test_pooled_effects_are_those_of_a_double_centred_matrix(self, favorites, dimension):
        found = favorites[dimension]
        x = np.array(found["matrix"])
        x = x - x.mean(axis=0) - x.mean(axis=1, keepdims=True) + x.mean()
        contrasts = np.diag(x) * 9 / 8
        assert [entry["contrast"]["value"] for entry in found["judges"]] == pytest.approx(contrasts, abs=3e-4)
        for name in ("cells", "judges", "contrasts"):
            assert only(found["pooled"], model=name)["value"] == pytest.approx(contrasts.mean(), abs=1e-4)

    def test_own_and_family_coefficients_are_those_of_a_design_built_by_hand(self, favorites, dimension):
        rows, found = rows_of(FILES[dimension]), favorites[dimension]
        judge = next(iter(study.MODELS))
        design, y, groups = [], [], defaultdict(list)
        for x in rows:
            if x["judge"] == judge:
                own = x["model"] == judge
                groups[x["prompt_id"]].append(len(y))
                design.append([1, own, company(x["model"]) == company(judge) and not own, float(x["gt"])])
                y.append(float(x["rating"]))
        a, y = np.array(design, dtype=float), np.array(y)
        assert a.sum(axis=0)[2] > 300  # two more of the company
        bread = np.linalg.inv(a.T @ a)
        b = bread @ a.T @ y
        scores = [a[i].T @ (y - a @ b)[i] for i in groups.values()]
        g, (n, k) = len(groups), a.shape
        covariance = bread @ sum(np.outer(s, s) for s in scores) @ bread * g / (g - 1) * (n - 1) / (n - k)
        for term, i in (("adjusted", 1), ("kin", 2)):
            entry = found["judges"][0][term]
            assert entry["value"] == pytest.approx(b[i], abs=2e-5)
            half = (entry["high"] - entry["low"]) / 2
            assert half == pytest.approx(math.sqrt(covariance[i, i]) * (1.972 if g == 200 else 1.964), rel=1e-3)

    def test_the_family_term_of_the_cells_is_that_of_twelve_cells(self, favorites, dimension):
        found, names = favorites[dimension], list(study.MODELS)
        design, y = [], []
        for j, judge in enumerate(names):
            for i, author in enumerate(names):
                kin = i != j and company(judge) == company(author)
                design.append([i == j, kin, *np.eye(9)[j], *np.eye(9)[i][1:]])
                y.append(found["matrix"][j][i])
        a = np.array(design, dtype=float)
        assert a[:, 1].sum() == 12
        own, family = np.linalg.lstsq(a, np.array(y))[0][:2]
        pooled = [x for x in found["pooled"] if x["model"] == "cells+family"]
        assert [x["value"] for x in pooled] == pytest.approx([own, family], abs=2e-4)


def test_ratings_that_are_no_number_or_off_the_scale_are_counted(tmp_path):
    rng = np.random.default_rng(1)
    rows = [
        {"judge": j, "model": a, "gt": float(rng.integers(3)), "prompt_id": f"p{p}", "rating": int(rng.integers(3))}
        for j in study.MODELS
        for a in study.MODELS
        for p in range(6)
    ]
    rows[0]["rating"], rows[1]["rating"], rows[2]["rating"] = "n/a", 7, -1
    path = tmp_path / "ratings.csv"
    pd.DataFrame(rows[:-1]).to_csv(path, index=False)
    found = study.dimension(pd.read_csv(path), 2, draws=200)["counts"]
    assert [found[k] for k in ("rows", "unparsed", "off_scale")] == [9 * 9 * 6 - 1, 1, 2]
    assert found["missing"][0][0] == 3
    assert found["missing"][8][8] == 1
    assert sum(map(sum, found["missing"])) == 4


def answers(preference, place, label, arm, *, articles=40, seed=0):
    """Rows in the released format of a judge with these log-odds: for its own text, the first option, its own name."""
    rng, rows = np.random.default_rng(seed), []  # the same texts in every arm
    coins = np.random.default_rng(9)
    for article in range(articles):
        for other in ("human", "claude", "gpt35", "llama"):
            true = {"none": None, "correct": True, "wrong": False, "random": bool(coins.integers(2))}[arm]
            own = preference + rng.normal() + {None: 0, True: label, False: -label}[true]
            row = {"key": str(article), "model": other}
            p = {}
            for way, odds, option in (("forward", place + own, "12"), ("backward", place - own, "12")):
                first = 1 / (1 + math.exp(-odds))
                row[f"{way}_comparison"] = option[first < 0.5]
                row[f"{way}_probability"] = max(first, 1 - first)
                p[way] = first if way == "forward" else 1 - first
            row["self_preference"] = (p["forward"] + p["backward"]) / 2
            rows.append(
                row | ({"random_labels": ["gpt4", other] if true else [other, "gpt4"]} if arm == "random" else {})
            )
    return rows


def shifts(**planted):
    tables = {
        arm: study.read_choices(answers(arm=arm, **planted), "gpt4", map(str, range(40)))[0] for arm in study.ARMS
    }
    return study.label_shifts(tables), tables


class TestPlanted:
    def test_a_planted_label_effect_comes_back_beside_a_strong_taste_for_the_first_place(self):
        effects, _ = shifts(preference=0.5, place=2.0, label=0.3)
        gap = only(effects, scale="log_odds", other="all", effect="correct - wrong")
        assert [gap["value"], gap["low"], gap["high"]] == pytest.approx([0.6] * 3, abs=1e-5)
        assert only(effects, scale="log_odds", other="human", effect="wrong - none")["value"] == pytest.approx(-0.3)
        for repeat in ("random correct - correct", "random wrong - wrong"):
            assert only(effects, scale="log_odds", other="all", effect=repeat)["value"] == pytest.approx(0, abs=1e-9)
        assert only(effects, scale="log_odds", other="all", effect=study.UNPAIRED)["value"] == pytest.approx(
            0.6, abs=0.4
        )

    def test_a_judge_that_always_names_the_first_option_has_no_label_effect(self):
        rows = {
            arm: [
                row | {"forward_comparison": "1", "forward_probability": 0.97}
                | {"backward_comparison": "1", "backward_probability": 0.97, "self_preference": 0.5}
                for row in answers(0.0, 0.0, 0.5, arm)
            ]
            for arm in study.ARMS
        }  # fmt: skip
        tables = {arm: study.read_choices(rows[arm], "gpt4", map(str, range(40)))[0] for arm in study.ARMS}
        effects = study.label_shifts(tables)
        assert len(effects) == 2 * 3 * 7
        assert {abs(x[k]) for x in effects for k in ("value", "low", "high")} == {0}
        assert study.scales(tables["none"])["probability"].unique() == pytest.approx([0.5])

    def test_rows_of_other_articles_and_repeated_rows_are_left_out_and_counted(self):
        rows = answers(0, 0, 0, "correct")
        table, counts = study.read_choices([*rows, *rows[:3], rows[0] | {"key": "x"}], "gpt4", map(str, range(40)))
        assert len(table) == 160
        assert [counts[k] for k in ("rows", "foreign", "repeated")] == [164, 1, 3]


def released(data, arm, judge):
    name = f"overlap_{data}_choices_{judge}" if arm == "none" else f"label_{data}_{arm}_{judge}"
    return {(row["key"], row["model"]): row for row in json.loads(download.fetch([name])[name].read_text())}


@pytest.mark.usefixtures("mirror")
class TestPanickssery:
    def test_log_odds_in_a_plain_loop(self, labels):
        total = {}
        for arm in ("correct", "wrong"):
            total[arm] = []
            for row in released("cnn", arm, "gpt35").values():
                odds = 0
                for way, own in (("forward", "1"), ("backward", "2")):
                    p = row[f"{way}_probability"] if row[f"{way}_comparison"] == own else 1 - row[f"{way}_probability"]
                    odds += math.log(p / (1 - p)) / 2
                total[arm].append(odds)
        wanted = mean(total["correct"]) - mean(total["wrong"])
        found = only(
            labels["effects"], data="cnn", judge="gpt35", scale="log_odds", other="all", effect="correct - wrong"
        )
        assert found["value"] == pytest.approx(wanted, abs=1e-5)
        assert (found["rows"], found["n"]) == (4000, 1000)

    @pytest.mark.parametrize("judge", ["gpt4", "gpt35"])
    def test_under_wrong_labels_xsum_files_hold_the_other_texts_preference(self, labels, judge):
        correct, wrong = (released("xsum", arm, judge) for arm in ("correct", "wrong"))
        again = released("xsum", "random", judge)
        swapped = [k for k, row in again.items() if row["random_labels"][1] == judge]  # own text under the other's name
        own = {k: again[k]["self_preference"] for k in swapped}
        as_is = mean(abs(own[k] - wrong[k]["self_preference"]) for k in swapped)
        turned = mean(abs(own[k] - 1 + wrong[k]["self_preference"]) for k in swapped)
        assert turned < 0.06 < 0.2 < as_is
        gap = mean(row["self_preference"] - (1 - wrong[k]["self_preference"]) for k, row in correct.items())
        entry = only(
            labels["effects"], data="xsum", judge=judge, scale="probability", other="all", effect="correct - wrong"
        )
        assert entry["value"] == pytest.approx(gap, abs=1e-3)
        counts = only(labels["files"], data="xsum", judge=judge, arm="wrong")
        assert counts["reversed"] > 3700 > 300 > counts["agree"]

    def test_random_rows_repeat_the_arm_with_the_same_labels(self, labels):
        for entry in labels["identical"]:
            assert entry["same"] > 5 * entry["other"]
        for effect in ("random correct - correct", "random wrong - wrong"):
            repeats = [
                x for x in labels["effects"]
                if x["effect"] == effect and x["other"] == "all" and x["scale"] == "probability"
            ]  # fmt: skip
            assert len(repeats) == 4
            assert max(abs(x["value"]) for x in repeats) < 0.01

    @pytest.mark.parametrize("data", study.DATA)
    def test_llama_label_files_hold_one_order_own_text_first(self, labels, data):
        plain, correct, wrong = (released(data, arm, "llama") for arm in ("none", "correct", "wrong"))
        first = {}
        for way in ("forward", "backward"):
            outputs = {k: row[f"{way}_comparison_output"] for k, row in plain.items()}
            first[way] = [math.log(p["1"] / p["2"]) for p in outputs.values()]
        odds = {}
        for arm, rows in (("correct", correct), ("wrong", wrong)):
            p = [rows[k]["self_preference"] for k in plain]
            odds[arm] = np.log(p) - np.log1p(-np.array(p))
            assert np.corrcoef(odds[arm], first["forward"])[0, 1] > 0.8
            assert np.corrcoef(odds[arm], first["backward"])[0, 1] < 0.6
        entry = only(
            labels["effects"], data=data, judge="llama", scale="log_odds", other="all", effect="correct - wrong"
        )
        assert entry["value"] == pytest.approx((odds["correct"] - odds["wrong"]).mean(), abs=1e-5)

    def test_llama_files_repeat_rows_and_mix_data_sets(self, labels):
        counts = {(x["data"], x["arm"]): x for x in labels["files"] if x["judge"] == "llama"}
        assert counts["cnn", "correct"]["rows"] == 8000
        assert counts["cnn", "correct"]["foreign"] == counts["cnn", "wrong"]["foreign"] == 4000
        for data in study.DATA:
            assert counts[data, "random"]["repeated"] == 3000
            name = f"label_{data}_random_llama"
            for row in json.loads(download.fetch([name])[name].read_text())[:400]:
                arm = "correct" if row["random_labels"][0] == "llama" else "wrong"
                twin = released_llama(data, arm)[row["key"], "human"]
                assert row["self_preference"] == twin["self_preference"]

    def test_positions_in_a_plain_loop(self, labels):
        pairs = [x["forward_comparison"] + x["backward_comparison"] for x in released("cnn", "wrong", "gpt35").values()]
        found = only(labels["positions"], data="cnn", judge="gpt35", arm="wrong")
        assert [found[k] for k in ("first", "second", "own", "other")] == pytest.approx(
            [pairs.count(x) / 4000 for x in ("11", "22", "12", "21")], abs=1e-5
        )


_LLAMA = {}


def released_llama(data, arm):
    if (data, arm) not in _LLAMA:
        _LLAMA[data, arm] = released(data, arm, "llama")
    return _LLAMA[data, arm]


@pytest.mark.slow
@pytest.mark.usefixtures("mirror")
@pytest.mark.parametrize("name", ["label_play_favorites", "label_panickssery"])
def test_committed_numbers_come_out_again(name):
    assert public.result(name, fetch=True).recomputed
