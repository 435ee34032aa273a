"""The catalogue fits the sources, and a sample of its faults is found. ``make mutants`` tries all of them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutants.__main__ import check
from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.planted import ROOT

SAMPLE = (
    "M2: term and vote are not written",
    "an older term's entry is committed by counting",
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_replaces_occurs_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.find) == 1
    assert mutant.find != mutant.replace
    assert all((ROOT / path).exists() for path in mutant.tests)


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(m.name for m in MUTANTS).items() if count > 1] == []


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_the_faults_is_found(name: str) -> None:
    mutant = next(m for m in MUTANTS if m.name == name)
    verdict = check(mutant)
    assert verdict.found_by, f"{name} survived: {verdict.note}"
