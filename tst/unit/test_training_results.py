"""The final table's numbers, against values worked out by hand."""

import math

import pytest

from agent_env.bundle.recipe import RewardShare
from agent_env.training.results import HeldOut, paired_difference


def test_mean_and_standard_error_are_over_tasks() -> None:
    """1, 2, 3, 4 have mean 2.5, sample variance 5/3, and so a standard error of sqrt(5/12)."""
    row = HeldOut(name="x", rewards={"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0})
    assert row.mean == 2.5
    assert row.standard_error == pytest.approx(math.sqrt(5 / 12))


def test_nothing_scored_has_no_mean() -> None:
    """A row without a reward says NaN, never zero."""
    row = HeldOut(name="x", rewards={}, failed=3)
    assert math.isnan(row.mean)
    assert math.isnan(row.standard_error)


def test_shares_are_strict_or_not_as_named() -> None:
    """`above` leaves out the mark itself and `at_least` takes it in."""
    row = HeldOut(name="x", rewards={"a": 0.2, "b": 0.5, "c": 1.0, "d": 0.0})
    assert row.share(RewardShare(name="beats idling", above=0.2)) == 0.5
    assert row.share(RewardShare(name="at the best", at_least=1.0)) == 0.25


def test_paired_difference_takes_out_how_hard_a_task_is() -> None:
    """Two policies that differ by 0.1 on every task differ by 0.1 with no error, however far the tasks are apart."""
    before = HeldOut(name="before", rewards={"a": 0.0, "b": 0.25, "c": 0.5})
    after = HeldOut(name="after", rewards={"a": 0.125, "b": 0.375, "c": 0.625, "only-here": 9.0})
    difference = paired_difference(after, before)
    assert (difference.mean, difference.standard_error, difference.tasks) == (0.125, 0.0, 3)
