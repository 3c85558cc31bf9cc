"""Instances that several tests of the learned scheduler use."""

from __future__ import annotations

from functools import cache

from hypothesis import assume
from hypothesis import strategies as st

from conductor.problem.presets import load_preset
from conductor.rl.instance import Instance
from conductor.rl.plans import best_plan
from tests.strategies import problems


@cache
def preset_instance(name: str) -> Instance:
    spec = load_preset(name)
    return Instance.of(spec, best_plan(spec))


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """Any placement, uneven stages, ties, zero times, blocking transfers, memory limits that hold the plan."""
    spec, plan = draw(problems(max_splits=1))
    assume(not plan.overlaps.any())
    return Instance.of(spec, plan)
