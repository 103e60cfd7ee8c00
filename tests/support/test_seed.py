"""What is left out of a matrix, and what never is."""

from __future__ import annotations

import itertools

import pytest

from tests.support import seed

CASES = list(itertools.product(("kafka", "s3", "files"), ("before", "after"), (1, 2, 3)))


@pytest.mark.parametrize("number", range(20))
def test_a_sample_has_every_value_of_every_axis(number: int) -> None:
    chosen = seed.sample(CASES, whole=False, seed=number)
    assert [set(axis) for axis in zip(*chosen, strict=True)] == [set(axis) for axis in zip(*CASES, strict=True)]
    assert len(chosen) < len(CASES) / 2
    assert chosen == [case for case in CASES if case in chosen]


def test_seeds_try_every_case_in_the_end() -> None:
    assert {case for number in range(200) for case in seed.sample(CASES, whole=False, seed=number)} == set(CASES)


def test_the_same_seed_chooses_the_same_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for given in ("7", "7", "8"):
        seed.run_seed.cache_clear()
        monkeypatch.setenv("TIDEMILL_SEED", given)
        found.append((seed.run_seed(), seed.sample(CASES, whole=False)))
    seed.run_seed.cache_clear()
    assert found[0] == found[1]
    assert found[2][0] == 8


def test_a_whole_matrix_leaves_nothing_out() -> None:
    assert seed.sample(CASES, whole=True) == CASES


def test_of_cases_that_show_the_same_a_run_has_one_and_a_whole_matrix_all() -> None:
    assert seed.choose("sinks", ("a", "b", "c"), whole=True) == ["a", "b", "c"]
    [chosen] = seed.choose("sinks", ("a", "b", "c"), whole=False)
    assert [chosen] == seed.choose("sinks", ("a", "b", "c"), whole=False)
    assert {seed.choose(name, ("a", "b", "c"), whole=False)[0] for name in range(50)} == {"a", "b", "c"}
