"""The controller of migration: on while it pays, off where it does not, and it does not flap."""

from types import SimpleNamespace

import numpy as np
import pytest

from conductor.migration.model import SimpleModel
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.runtime.exchange.help import StepHelps
from conductor.runtime.migration import control, memory
from conductor.runtime.migration.control import MigrationControl
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline

SPEC = PipelineSpec(
    num_ranks=4, num_microbatches=8, forward_ms=10.0, backward_input_ms=10.0,
    backward_weight_ms=7.0, memory_limit=4.0,
)  # fmt: skip
PLAN = build("zb-1p", SPEC)


class Ranks:
    """All ranks in one: actions take what `factors` say; a step with migration takes `share` of one without."""

    def __init__(self, monkeypatch, share):
        self.share, self.factors = share, np.ones(4)
        self.exchange = SimpleNamespace(migration=None, report=StepHelps(), set_migration=self._set)
        self.schedule = SimpleNamespace(
            plan=PLAN, mode="static", rank=0, num_steps=0, group=None, exchange=self.exchange,
            times=SimpleNamespace(start_ns=[0]), boundaries={}, transfers={},
        )  # fmt: skip
        for module in (control, memory):
            monkeypatch.setattr(module, "gather", lambda value, group: [value])
        monkeypatch.setattr(control, "broadcast", lambda value, source, group: value)
        monkeypatch.setattr(control, "action_table", lambda *_: self.table())
        monkeypatch.setattr(control, "link_ms", lambda *_: 0.0)
        monkeypatch.setattr(control, "start_delays_ms", lambda *_: np.zeros(4))
        self.control = MigrationControl(self.schedule, SPEC, model=SimpleModel(parts=16))
        self.rng = np.random.default_rng(0)

    def _set(self, prepared, lendings=None, units=None, limit_bytes=None):
        self.exchange.migration, self.units = prepared, units

    def table(self):
        factors = self.factors[list(PLAN.stage_ranks)]
        table = np.zeros((len(Kind), PLAN.num_stages))
        table[:3] = SPEC.duration_ms[:3] * factors
        return table * self.rng.uniform(0.99, 1.01, table.shape)

    def run(self, steps):
        """Whether migration was on in each step."""
        on = []
        for _ in range(steps):
            is_on = self.exchange.migration is not None
            on.append(is_on)
            table = self.table()
            whole = control.profile(table, np.zeros(4), self.control.spec)
            spec = control.with_times(self.control.spec, whole)
            makespan = timeline(spec, PLAN).makespan_ms * self.rng.uniform(0.99, 1.01)
            makespan *= self.share if is_on else 1.0
            self.schedule.num_steps += 1
            self.control.after_step(SimpleNamespace(makespan_ms=makespan))
        return on


def test_it_goes_on_after_two_steps_and_stays_where_steps_get_shorter(monkeypatch):
    on = Ranks(monkeypatch, share=0.9).run(60)
    assert on == [False] * 2 + [True] * 58


def test_it_goes_off_where_steps_do_not_get_shorter_and_tries_ever_more_seldom(monkeypatch):
    ranks = Ranks(monkeypatch, share=1.0)
    on = ranks.run(200)
    switches = int(np.abs(np.diff(np.array(on, int))).sum())
    assert 2 <= switches <= 10
    assert sum(on[100:]) <= 8
    assert any("migration off" in text for text in ranks.control.decisions)


def test_a_rank_that_turns_slow_is_a_new_chance_and_a_lasting_one_lends_columns(monkeypatch):
    ranks = Ranks(monkeypatch, share=1.0)
    ranks.run(20)
    ranks.share, ranks.factors[2] = 0.8, 1.6
    on = ranks.run(40)
    assert all(on[5:])
    assert float(ranks.control.spec.per_stage("forward_ms")[2]) == pytest.approx(16.0, rel=0.05)
    assert set(ranks.units.held) == {2}
    assert all(lender != 2 for lender, _ in ranks.units.held[2])


def test_slices_are_not_placed_where_lenders_have_no_room(monkeypatch):
    class Weights(control.Units):
        def lender_bytes(self, tokens):
            return {lender: 1000 for each in self.held.values() for lender, _ in each}, 10

    monkeypatch.setattr(control, "Units", Weights)
    for budget, lenders in ((1020, 2), (1019, 0)):
        ranks = Ranks(monkeypatch, share=0.8)
        ranks.control._lender_bytes = budget
        ranks.factors[2] = 1.6
        ranks.run(30)
        assert any("hold columns" in text for text in ranks.control.decisions)
        assert sum(map(len, ranks.units.held.values())) == lenders


def test_nothing_moves_where_a_message_takes_longer_than_the_work(monkeypatch):
    ranks = Ranks(monkeypatch, share=0.5)
    ranks.control._given = SimpleModel(latency_ms=30.0, parts=16)
    assert not any(ranks.run(20))
