"""Overlap of sets by counting, chance by enumeration, neighbours by a loop."""

from itertools import combinations

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from reprolib.errors import ParameterError
from reprolib.metrics.style import jaccard_chance, jaccard_matrix, knn_correct, mean_jaccard

AUTHORS = np.repeat(["ann", "bob", "cy", "dee"], 8)


def chosen(seed: int = 0, items: int = 40, size: int = 8, liking: float = 1.0) -> np.ndarray:
    """Simulated sets: each author prefers some items."""
    rng = np.random.default_rng(seed)
    taste = np.repeat(rng.normal(0, liking, (4, items)), 8, axis=0) + rng.gumbel(size=(32, items))
    return taste >= np.sort(taste, axis=1)[:, [-size]]


def test_jaccard_by_counting_for_sets_of_equal_and_unequal_size():
    for sets in (chosen(), np.random.default_rng(1).random((20, 12)) < 0.4):
        members = [set(np.flatnonzero(row)) for row in sets]
        expected = [[len(a & b) / len(a | b) for b in members] for a in members]
        assert jaccard_matrix(sets) == pytest.approx(np.array(expected), abs=1e-12)


def test_means_within_and_between_authors_are_those_of_the_pairs():
    matrix = jaccard_matrix(chosen())
    within, between = mean_jaccard(matrix, AUTHORS)
    pairs = list(combinations(range(32), 2))
    for name in within.index:
        assert within[name] == pytest.approx(np.mean([matrix[p] for p in pairs if {*AUTHORS[list(p)]} == {name}]))
    assert between == pytest.approx(np.mean([matrix[p] for p in pairs if len({*AUTHORS[list(p)]}) == 2]))
    assert within.min() > between  # authors repeat themselves


def test_a_single_set_has_no_mean_within():
    within, _ = mean_jaccard(jaccard_matrix(chosen()[:9]), AUTHORS[:9])
    assert within.isna().to_dict() == {"ann": False, "bob": True}


@pytest.mark.parametrize(("items", "size"), [(6, 2), (7, 3), (8, 4), (5, 5)])
def test_chance_is_the_mean_over_all_pairs_of_sets(items, size):
    first = set(range(size))
    found = [len(first & set(other)) / len(first | set(other)) for other in combinations(range(items), size)]
    assert jaccard_chance(items, size) == pytest.approx(np.mean(found))


def test_chance_of_the_papers_pool():
    assert jaccard_chance(200, 20) == pytest.approx(0.0538, abs=5e-5)
    sets = np.random.default_rng(0).random((300, 200)).argsort(axis=1) < 20  # simulated
    assert mean_jaccard(jaccard_matrix(sets), np.zeros(300))[0][0] == pytest.approx(0.0538, abs=0.001)


def by_loop(matrix: np.ndarray, authors: np.ndarray, k: int) -> list[bool]:
    found = []
    for i, truth in enumerate(authors):
        others = sorted((j for j in range(len(authors)) if j != i), key=lambda j: -matrix[i, j])
        last = matrix[i, others[k - 1]]
        sure = [j for j in others if matrix[i, j] > last]
        level = [j for j in others if matrix[i, j] == last]
        votes = dict.fromkeys(authors, 0.0)
        for j in others:
            votes[authors[j]] += (j in sure) + (j in level) * (k - len(sure)) / len(level)

        def rank(name, i=i, others=others, votes=votes):
            theirs = [matrix[i, j] for j in others if authors[j] == name]
            return round(votes[name], 9), max(theirs), round(float(np.mean(theirs)), 9), name

        found.append(max(votes, key=rank) == truth)
    return found


@pytest.mark.parametrize("k", [1, 2, 3, 5, 7, 31])
@pytest.mark.parametrize("size", [3, 8])  # sets of 3 have few distances: ties everywhere
def test_neighbours_as_a_loop_finds_them(k, size):
    matrix = jaccard_matrix(chosen(2, size=size, liking=0.7))
    assert knn_correct(matrix, AUTHORS, k).tolist() == by_loop(matrix, AUTHORS, k)


def test_without_ties_the_nearest_neighbour_is_sklearns():
    matrix = np.random.default_rng(3).random((32, 32))
    matrix = (matrix + matrix.T) / 2
    for i in range(32):
        rest = np.delete(np.arange(32), i)
        model = KNeighborsClassifier(1, metric="precomputed").fit(1 - matrix[np.ix_(rest, rest)], AUTHORS[rest])
        assert (model.predict(1 - matrix[[i]][:, rest])[0] == AUTHORS[i]) == knn_correct(matrix, AUTHORS, 1)[i]


@pytest.mark.parametrize("k", [1, 4, 5])
def test_the_order_of_rows_does_not_matter(k):
    matrix = jaccard_matrix(chosen(4, size=3, liking=0.7))
    order = np.random.default_rng(5).permutation(32)
    assert (
        knn_correct(matrix[np.ix_(order, order)], AUTHORS[order], k) == knn_correct(matrix, AUTHORS, k)[order]
    ).all()


def test_accuracy_is_at_chance_for_authors_alike_and_above_for_tastes():
    def mean(liking):
        return np.mean([knn_correct(jaccard_matrix(chosen(s, size=5, liking=liking)), AUTHORS, 3) for s in range(60)])

    assert mean(0.0) == pytest.approx(7 / 31, abs=0.04)  # of the 31 other sets, 7 are the author's
    assert mean(1.5) > 0.6


@pytest.mark.parametrize("k", [0, 32])
def test_impossible_numbers_of_neighbours_are_refused(k):
    with pytest.raises(ParameterError, match="at least 1"):
        knn_correct(np.eye(32), AUTHORS, k)
