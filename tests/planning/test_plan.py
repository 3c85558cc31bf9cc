"""plan(): every schedule that fits, best first."""

import re

import numpy as np
import pytest

from conductor.errors import DoesNotFitError, InvalidSpecError
from conductor.ir.validate import validate
from conductor.planning.plan import LEARNED, plan
from conductor.problem.presets import load_preset
from conductor.schedules.registry import POOL
from conductor.simulator.simulate import simulate


@pytest.fixture(scope="module")
def gpt_like():
    return load_preset("gpt-like")


def test_every_schedule_is_a_candidate_or_rejected_with_a_reason(gpt_like):
    result = plan(gpt_like)
    names = [candidate.name for candidate in result.candidates]
    assert sorted({*names, *result.rejected} - {LEARNED}) == sorted(POOL)
    assert all(name in reason for name, reason in result.rejected.items())
    # GPipe holds all eight micro-batches, the limit is four.
    assert "4 is missing" in result.rejected["gpipe"]


def test_candidates_are_sorted_by_makespan_and_valid(gpt_like):
    result = plan(gpt_like)
    times = [candidate.timeline.makespan_ms for candidate in result.candidates]
    assert times == sorted(times)
    assert result.best is result.candidates[0]
    for candidate in result.candidates:
        validate(candidate.schedule, gpt_like)
        assert candidate.lower_bound_ms <= candidate.timeline.makespan_ms * (1 + 1e-9)
        assert candidate.plan_ms > 0.0
        assert simulate(gpt_like, candidate.schedule).makespan_ms == pytest.approx(
            candidate.timeline.makespan_ms
        )


def test_the_zero_bubble_order_is_the_proved_optimum_of_equal_ranks(gpt_like):
    result = plan(gpt_like, schedules=["1f1b", "zb-1p"])
    assert [candidate.name for candidate in result.candidates] == ["zb-1p", "1f1b"]
    assert result.best.timeline.makespan_ms == pytest.approx(259.8)


def test_the_stage_span_objective_sorts_by_stage_span():
    spec = load_preset("gpt-1.5b-p8-m24")
    result = plan(spec, schedules=["1f1b", "zb-1p", "zb-2p"], objective="stage-span")
    spans = [candidate.timeline.stage_span_ms for candidate in result.candidates]
    assert spans == sorted(spans)
    # The Zero Bubble paper's table.
    assert {
        candidate.name: round(candidate.timeline.stage_span_bubble_ratio, 4)
        for candidate in result.candidates
    } == {"1f1b": 0.2431, "zb-1p": 0.1585, "zb-2p": 0.0433}


def test_a_memory_limit_that_nothing_fits_says_rank_and_missing_memory(gpt_like):
    tight = gpt_like.with_(memory_limit=0.2)
    with pytest.raises(DoesNotFitError) as error:
        plan(tight)
    message = re.fullmatch(
        r"no schedule fits: the nearest, (\S+) needs 1 of activation memory on rank 0,"
        r" which has 0\.2: (0\.8) is missing",
        str(error.value),
    )
    # With as much more it fits; with a little less nothing does.
    assert plan(gpt_like.with_(memory_limit=0.2 + float(message[2])), schedules=[message[1]])
    with pytest.raises(DoesNotFitError):
        plan(gpt_like.with_(memory_limit=0.2 + 0.99 * float(message[2])))


def test_one_schedule_that_does_not_fit_gives_its_own_reason(gpt_like):
    with pytest.raises(DoesNotFitError, match=r"^gpipe needs 8 .* on rank 0.*4 is missing"):
        plan(gpt_like, schedules=["gpipe"])


def test_an_unknown_schedule_is_refused(gpt_like):
    with pytest.raises(InvalidSpecError, match="'nope'"):
        plan(gpt_like, schedules=["nope"])


def test_peak_memory_stays_within_the_limits_of_each_rank():
    spec = load_preset("gpt-like").with_(memory_limit=(4.0, 3.0, 3.0, 2.0))
    for candidate in plan(spec).candidates:
        assert np.all(candidate.timeline.peak_memory <= spec.memory_limits * (1 + 1e-9))
