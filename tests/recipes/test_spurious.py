"""Rules remove what they name and keep the rest; records keep texts apart from positions; results agree with others."""

import re

import pandas as pd
import pytest

from reprolib.errors import ParameterError
from reprolib.evidence import PAIRWISE, public, recipe
from reprolib.evidence.recorded import read_record, records
from reprolib.metrics.style import style_counts
from tests.recipes.reader import Reader

study = recipe("spurious")

TEXT = """## A *heading*

**Bold**.  And _not this_, __this__; 2 * 3 * 4.

* one
  - **two**
1. first
2) *second*

| a | b |
|:--|--:|
| c | d |

---
> said `so` 🎉
```python
# comment
x = [1,  2]
```
end!
"""


class TestRules:
    def test_format_goes_and_every_word_stays(self):
        plain = study.strip_format(TEXT)
        assert plain == (
            "A heading Bold. And _not this_, this; 2 * 3 * 4. one two first second a, b c, d said so\n"
            "# comment\nx = [1,  2]\nend!"
        )
        assert study.strip_format(plain.splitlines()[0]) == plain.splitlines()[0]

    def test_no_habit_of_format_is_left_outside_code(self):
        text = TEXT.replace("# comment", "comment")
        counts = style_counts([study.strip_format(text)]).loc[0]
        assert counts[counts > 0].to_dict() == {"exclamations": 1}
        assert (style_counts([text]).loc[0] > 0).all()

    def test_an_open_fence_is_code_to_the_end_and_nothing_stays_nothing(self):
        assert study.strip_format("so:\n```\nx  = 1\n* y") == "so:\nx  = 1\n* y"
        assert study.strip_format("\n\n---\n") == ""

    def test_words_are_replaced_and_format_stays(self):
        text = "**However**, it’s *crucial*:\n\n1. utilize  it\n```\nutilize\n```\nOverall, utilize well-known ways."
        assert study.substitute_words(text) == (
            "**But**, it is *important*:\n\n1. use  it\n```\nutilize\n```\nIn short, use famous ways."
        )
        assert style_counts([study.substitute_words(TEXT)]).equals(style_counts([TEXT]))

    def test_parts_of_words_stay(self):
        assert study.substitute_words("re-create a typewriter, aided's") == "re-create a typewriter, aided's"

    def test_the_table_maps_many_to_one_each_word_once_and_never_in_chains(self):
        lists = study._prompts()["words"]
        words = [word for some in lists.values() for word in some]
        assert len(words) == len(set(words))
        assert 1.5 * len(lists) < len(words)
        assert not {*words} & {*lists}
        for plain, some in lists.items():
            for word in some:
                assert study.substitute_words(f"so {word}.") == f"so {plain}."
            assert study.substitute_words(plain) == plain


class Answers(Reader):
    first = 2.0

    def generate(self, prompts, **_):
        texts = [p[0]["content"].split("Text:\n")[1] for p in prompts]
        return pd.DataFrame({"text": [f" {text} {text}" for text in texts]})

    def texts(self, prompt):
        return re.fullmatch(r"(?s).*\nAnswer 1:\n(.*)\n\nAnswer 2:\n(.*)\n\nWhich .*", prompt).groups()


def halves(name):
    rows = read_record(study.STUDY, name, PAIRWISE).table
    return rows.assign(odds=rows.logp_1 - rows.logp_2).pivot(index="pair_id", columns="order", values="odds")


class TestRecord:
    def test_preference_follows_the_texts_and_position_cancels(self, mirror, project):
        study.record(Answers(study.REWRITER), command="test", pairs=3)
        items = pd.read_parquet(project / "evidence" / study.ITEMS).set_index(["condition", "pair_id"])
        for condition in study.CONDITIONS:
            both = halves(f"{study.REWRITER}_{condition}")
            words = items.loc[condition].loc[both.index]
            preference, first = (both[0] - both[1]) / 2, (both[0] + both[1]) / 2
            assert preference.to_numpy() == pytest.approx(0.1 * (words.words_a - words.words_b).to_numpy())
            assert first.to_numpy() == pytest.approx([2, 2, 2])
        doubled = items.loc["style"].words_a / items.loc["none"].words_a.reindex(items.loc["style"].index)
        assert doubled[both.index].tolist() == [2, 2, 2]
        assert not {"prompt", "a", "b", "question"} & {
            *items,
            *read_record(study.STUDY, f"{study.REWRITER}_none", PAIRWISE).table,
        }

    def test_one_condition_can_be_made_alone_and_an_unknown_one_is_refused(self, mirror, project):
        study.record(Answers(mass=0.1), command="test", pairs=2, conditions="format")
        assert [name for s, name in records() if s == study.STUDY and name.startswith("reader")] == ["reader_format"]
        assert set(read_record(study.STUDY, "reader_format", PAIRWISE).table.verdict) == {"unparsed"}
        with pytest.raises(ParameterError, match="no condition 'formats'; did you mean 'format'"):
            study.record(Answers(), command="test", conditions="formats")

    def test_the_sample_holds_short_pairs_of_distinct_questions_in_a_fixed_order(self, mirror):
        sample = study.sampled_pairs(study.released_pairs())
        words = pd.concat([sample[x].str.split().str.len() for x in "ab"])
        assert (len(sample), sample.pair_id.nunique()) == (study.SAMPLE, study.SAMPLE)
        assert words.between(*study.WORDS).all()

    def test_every_record_judges_the_first_pairs_of_the_sample_in_both_orders(self, mirror):
        order = study.sampled_pairs(study.released_pairs()).pair_id.tolist()
        names = [name for s, name in records() if s == study.STUDY]
        assert names
        for name in names:
            table = read_record(study.STUDY, name, PAIRWISE).table
            assert set(table.condition) == {name.rpartition("_")[2]}
            assert sorted(set(table.pair_id)) == sorted(order[: len(table) // 2])
            assert table.groupby("pair_id")["order"].apply(sorted).map(lambda orders: orders == [0, 1]).all()


class TestPublic:
    def test_untouched_answers_are_as_separable_as_the_first_chapter_says(self):
        told = pd.DataFrame(public.result("leakage_spurious").values["separability"])
        none = told[told.condition == "none"].set_index("feature")
        first = public.result("leakage_gemini_judgments").values["separability"]
        for feature in ("words, marks and spaces", "nine format counts"):
            assert none.value[feature] == pytest.approx(first[feature]["value"], abs=0.1)
        assert none.value["original classifier"] == none.value["words, marks and spaces"]

    def test_falls_are_differences_of_shares_and_wording_leaves_format_alone(self):
        values = public.result("leakage_spurious").values
        told, fell = (
            pd.DataFrame(values[k]).set_index(["feature", "condition"]).value for k in ("separability", "falls")
        )
        for feature in told.index.unique("feature"):
            for condition in ("format", "wording", "format and wording"):
                assert fell[feature, condition] == pytest.approx(told[feature, "none"] - told[feature, condition])
            lost = fell[feature, "format"] - fell[feature, "wording"]
            assert fell[feature, "over wording"] == pytest.approx(lost)
        assert told["nine format counts", "wording"] == pytest.approx(told["nine format counts", "none"], abs=0.2)
        assert 0 < values["words_changed"] < 30

    def test_habits_are_counted_on_the_released_answers(self, mirror):
        habits = pd.DataFrame(public.result("leakage_spurious").values["habits"])
        none = habits[habits.condition == "none"].set_index("habit")
        pairs = study.released_pairs()
        assert len(pairs) == 805
        assert none.gemini["bold"] == pytest.approx(9.9, abs=0.05)
        assert none.llama["numbered"] == pytest.approx(6.7, abs=0.05)
        assert none.gemini.to_dict() == pytest.approx(style_counts(pairs.a.tolist()).mean().to_dict())
