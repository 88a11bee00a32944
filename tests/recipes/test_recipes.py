"""Every recipe can be loaded, keeps its promises, and is found by its name."""

import doctest

import pytest

from reprolib import cli
from reprolib.errors import ParameterError
from reprolib.evidence import public, recipe, recipes


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_makes_evidence_and_its_examples_hold(name):
    module = recipe(name)
    assert hasattr(module, "record") or any(c.__module__ == module.__name__ for c, *_ in public._registered.values())
    assert doctest.testmod(module).failed == 0


def test_every_committed_result_has_its_recipe(root):
    assert sorted(public.studies()) == sorted(path.stem for path in root.glob("evidence/public/*.json"))


def test_an_unknown_recipe_offers_the_known_ones():
    with pytest.raises(ParameterError, match="no recipe 'overlaps'; did you mean 'overlap'"):
        recipe("overlaps")


def test_a_recipe_that_only_computes_makes_no_record(capsys):
    assert cli.main(["record", "leakage", "smollm2-135m"]) == 1
    assert "the recipe 'leakage' makes no record; it computes: try reprolib recompute" in capsys.readouterr().err
