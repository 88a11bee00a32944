"""The released fields mean what we say, records keep texts apart from positions, and planted effects come back."""

import json

import numpy as np
import pandas as pd
import pytest

from reprolib.evidence import download, public, recipe
from reprolib.metrics.overlap import LABELS, Overlap, overlap
from tests.recipes.reader import Reader

study = recipe("overlap")


def committed():
    return study.released_pairs(public.result("overlap").values)


def raw(mirror, data, judge):
    name = f"overlap_{data}_choices_{judge}"
    return json.loads(download.fetch([name])[name].read_text())


class TestReleased:
    def test_six_thousand_pairs_hold_a_human_text_and_eighteen_thousand_two_models(self):
        pairs = committed()
        assert pairs.human.value_counts().to_dict() == {False: 18_000, True: 6_000}
        assert (pairs.groupby(["data", "judge", "a", "b"]).size() == 1_000).all()
        assert pairs[pairs.theta.isna()].groupby(["data", "judge"]).size().to_dict() == {
            ("xsum", "gpt4"): 4_000,
            ("xsum", "gpt35"): 4_000,
        }
        assert pairs.overlap.between(0, 1).all()

    def test_text_a_is_the_larger_models_and_b_the_persons(self):
        ranks = committed()[["a", "b"]].map(study.RANK.index)
        assert (ranks.a < ranks.b).all()

    def test_theta_pi_label_and_chance_tell_one_story(self):
        pairs = committed().dropna(subset=["theta"])
        first, second = pairs.theta + pairs.pi / 2, pairs.theta - pairs.pi / 2
        chances = np.mean([1 / (1 + np.exp(-x)) for x in (first, second)], axis=0)
        assert np.abs(chances - pairs.chosen).max() < 2e-3  # rounding
        sure = pairs[(first.abs() > 0.6) & (second.abs() > 0.6)]  # an option may win with less than half
        labels = np.select([(first > 0) & (second > 0), (first < 0) & (second < 0), first > 0], LABELS[:3], LABELS[3])
        assert len(sure) > 10_000
        assert (sure.label == pd.Series(labels, pairs.index)[sure.index]).all()

    def test_forward_showed_the_own_text_first_and_a_probability_is_of_the_option_chosen(self, mirror):
        differences = []
        for row in raw(mirror, "cnn", "gpt35"):
            own = [("forward", "1"), ("backward", "2")]
            p = [(row[f"{way}_comparison_probability"], row[f"{way}_comparison"] == option) for way, option in own]
            differences.append(abs(np.mean([x if is_own else 1 - x for x, is_own in p]) - row["self_preference"]))
        assert np.quantile(differences, [0.5, 0.99]) == pytest.approx([0, 0], abs=3e-3)  # other tokens hold the rest

    def test_llama_scores_of_xsum_have_exchanged_names(self, mirror):
        differences = {"same name": [], "other name": []}
        for row in raw(mirror, "xsum", "llama"):
            outputs = [(row[f"{way}_comparison_output"], own) for way, own in (("forward", "1"), ("backward", "2"))]
            mean = np.mean([p[own] / (p["1"] + p["2"]) for p, own in outputs])
            differences["same name"].append(abs(mean - row["self_preference"]))
            differences["other name"].append(abs(mean - row["detection_score"]))
        assert np.quantile(differences["other name"], 0.99) < 5e-3
        assert np.median(differences["same name"]) > 0.02

    def test_a_few_articles_computed_again_agree_with_the_committed_numbers(self, mirror):
        pairs = committed().set_index(["data", "judge", "a", "b"]).loc[("cnn", "gpt35", "gpt35", "human")].head(5)
        names = [f"overlap_cnn_summaries_{author}" for author in ("gpt35", "human")]
        texts = [json.loads(path.read_text()) for path in download.fetch(names).values()]
        rows = {row["key"]: row for row in raw(mirror, "cnn", "gpt35") if row["model"] == "human"}
        for (_, pair), key in zip(pairs.iterrows(), texts[1], strict=False):
            assert pair[[*Overlap._fields]].tolist() == pytest.approx(
                list(overlap(texts[0][key], texts[1][key])), abs=1e-3
            )
            assert pair.chosen == pytest.approx(rows[key]["self_preference"], abs=5e-3)


class Summaries(Reader):
    def generate(self, prompts, **_):
        return pd.DataFrame({"text": [p[0]["content"].split("\n\n")[-1] + " indeed" for p in prompts]})

    def texts(self, prompt):
        return prompt.split("\n\nsummary_1:\n")[1].rsplit("\n\nWhich", 1)[0].split("\n\nsummary_2:\n")


class TestRecord:
    def test_preference_and_position_come_apart_and_one_text_twice_is_never_preferred(self, mirror, project):
        study.record(Summaries(study.REWRITER), command="test", articles=4)
        pairs, kept = study.recorded_pairs(study.REWRITER)
        assert pairs.theta.to_numpy() == pytest.approx(0.1 * (pairs.words_a - pairs.words_b).to_numpy())
        assert pairs.pi.to_numpy() == pytest.approx(np.full(len(pairs), 1.0))
        same = pairs[pairs.condition == "same"]
        assert same[["theta", "overlap"]].to_numpy().tolist() == [[0, 1]] * 8
        assert kept.manifest.rows == 2 * 4 * 17
        assert not {"prompt", "text"} & set(kept.table)
        assert pairs.groupby("condition").size().to_dict() == {
            "human": 16, "models": 12, "rewritten_human": 8, "rewritten_gpt4": 8, "same": 8,
        }  # fmt: skip
        plain = study.recorded_pairs(study.REWRITER, arm="plain")[0]
        assert len(plain) == 16

    def test_a_judge_that_would_say_something_else_is_other_but_keeps_its_log_odds(self, mirror, project):
        study.record(Summaries(study.REWRITER, mass=0.1), command="test", articles=1)
        pairs, _ = study.recorded_pairs(study.REWRITER)
        assert set(pairs.label) == {"other"}
        assert pairs.theta.notna().all()

    def test_neighbours_share_the_article_and_both_orders_show_both_texts(self, mirror):
        articles = study.sampled_articles(2)
        for texts in articles.values():
            texts |= {f"{kind} {x}": texts["claude"] for kind in study.REWRITES for x in ("human", "gpt4")}
        table = study.prompts(articles)
        assert table.cluster_id.ne(table.cluster_id.shift()).sum() == 2
        for _, pair in table.groupby(["pair_id", "arm"]):
            both = [row.prompt[0]["content"] for row in pair.sort_values("order").itertuples()]
            assert sorted(both[0].split()) == sorted(both[1].split())

    def test_the_first_articles_stay_the_first(self, mirror):
        assert list(study.sampled_articles(5))[:3] == list(study.sampled_articles(3))


class TestLengthFilter:
    def local(self, tmp_path, column, summaries):
        path = tmp_path / "test.parquet"
        pd.DataFrame({column: summaries, "article": "text", "id": range(len(summaries))}).to_parquet(path)
        return {
            "path": "parquet",
            "data_files": {"test": str(path)},
            "cache_dir": str(tmp_path / "cache"),
            "text": column,
        }

    @pytest.mark.parametrize("column", ["highlights", "summary"])
    def test_keeps_95_to_105_words(self, tmp_path, column):
        given = self.local(tmp_path, column, ["w " * n for n in (94, 95, 100, 105, 106)])
        assert study.length_filtered(**given)["id"].tolist() == [1, 2, 3]

    def test_line_breaks_may_or_may_not_separate_words(self, tmp_path):
        given = self.local(
            tmp_path, "highlights", [" ".join(["w"] * 96) + "\nv"] * 2 + [" ".join(["w"] * 95) + "\nv\nu"]
        )
        assert len(study.length_filtered(**given)) == 3
        given = self.local(tmp_path, "highlights", [" ".join(["w"] * 94) + "\nv"])
        assert len(study.length_filtered(**given)) == 1
        assert len(study.length_filtered(**given, newlines=False)) == 0

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("hub", "name", "text", "kept"),
        [("abisee/cnn_dailymail", "3.0.0", "highlights", 286), ("d0rj/wikisum", None, "summary", 276)],
    )
    def test_the_real_test_sets_keep_what_the_paper_says(self, monkeypatch, hub, name, text, kept):
        import datasets

        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        try:
            table = study.length_filtered(hub, name=name, text=text)
        except (ConnectionError, ValueError, OSError):
            pytest.skip(f"{hub} is not in the cache of datasets")
        assert len(table) == kept


class TestEffects:
    def test_the_simulated_judge_gives_back_what_was_planted(self):
        table = recipe("simulations").simulated_pairs(weight=2.5, position=-0.8, seed=3)
        found = study.effect(table, length=False, draws=300)
        assert found.low < -2.5 < found.high
        assert study.effect(table, y="pi", length=False, draws=100).value == pytest.approx(0)
        logit = study.verdict_slope(table)
        assert logit.low < -2.4 < logit.high

    def test_constant_position_and_difference_alone_give_the_papers_picture(self):
        table = recipe("simulations").simulated_pairs(seed=3)
        shares = table.groupby(table.overlap // 0.1).label.value_counts(normalize=True).unstack(fill_value=0)
        assert shares.Generated.is_monotonic_decreasing
        assert shares.Human.max() < 0.25
        ties = shares[LABELS[2]] + shares[LABELS[3]]
        assert ties.iloc[-1] - ties.iloc[0] > 0.3

    def test_an_excess_that_was_planted_is_found_and_none_where_there_is_none(self):
        models = recipe("simulations").simulated_pairs(weight=1.0, seed=1).assign(human=False, cell="models")
        for weight, planted in ((3.0, -2.0), (1.0, 0.0)):
            both = pd.concat([recipe("simulations").simulated_pairs(weight=weight, seed=2), models])
            found = study.effect(both, "excess", length=False, draws=300)
            assert found.low < planted < found.high
            assert found.high - found.low < 0.5

    def test_length_is_held_fixed(self):
        rng = np.random.default_rng(0)
        table = recipe("simulations").simulated_pairs(seed=0)
        table["log_ratio"] = 2 * table.overlap + rng.normal(0, 0.1, len(table))
        table["theta"] = -1.5 * table.overlap + 3 * table.log_ratio
        assert study.effect(table, draws=100).value == pytest.approx(-1.5)
        assert study.effect(table, length=False, draws=100).value > 3
