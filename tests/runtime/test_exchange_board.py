"""What ranks tell each other is enough: a board that hears everything decides as the simulator does."""

from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.migration.execution import MigrationRules, latest_starts, prepare
from conductor.migration.model import SimpleModel
from conductor.migration.reference import Reference
from conductor.runtime.exchange.board import Board
from tests.strategies import durations, problems


class Told(Reference):
    """The simulator, which tells a board what ranks would tell, and compares its choices."""

    def __init__(self, prepared, realised):
        self.board, self.compared = Board(prepared), 0
        super().__init__(prepared, realised)

    def _tell(self):
        for rank, state in enumerate(self.ranks):
            action = self.actions[state.action]
            self.board.expects(rank, action.expected_end_ms, state.free_ms)
            running = state.action >= 0 and self.actions[state.action].status == "running"
            self.board.tell(
                rank,
                promised=state.pending is not None,
                borrows=running and self.actions[state.action].outstanding > 0,
            )

    def decide(self, rank, now, whole, saved, half, parts, inside):
        action = self.ranks[rank].action
        expected = self.actions[action].expected_end_ms
        if self.board.is_waiting(action):
            self.board.started(rank, action, now, expected)
        self._tell()
        chosen = super().decide(rank, now, whole, saved, half, parts, inside)
        assert self.board.decide(rank, now, whole, saved, half, parts, inside) == chosen
        self.compared += 1
        return chosen

    def _begin(self, rank, now):
        action = self.ranks[rank].action
        super()._begin(rank, now)
        if self.board.is_waiting(action):
            self.board.started(rank, action, now, self.actions[action].expected_end_ms)

    def _finish(self, rank, now):
        self.board.ended(rank, now)
        super()._finish(rank, now)


@settings(max_examples=60, deadline=None)
@given(
    problem=problems(max_ranks=5, max_microbatches=5),
    execution=st.sampled_from(("static", "ready-first")),
    delay=st.sampled_from((0.0, 0.5)),
    seed=st.integers(0, 2**32),
)
def test_a_board_that_hears_everything_decides_as_the_simulator(problem, execution, delay, seed):
    spec, schedule = problem
    if schedule.overlaps.any():
        execution = "static"
    model = SimpleModel(latency_ms=0.01, part_ms=0.001, parts=7)
    prepared = prepare(spec, schedule, model=model, execution=execution)
    rules = MigrationRules(latest_start_ms=latest_starts(prepared), delay_share=delay)
    prepared = prepared.with_rules(rules)
    told = Told(prepared, durations(prepared.program.duration_ms, seed)[0])
    movable = prepared.costs.movable > 0.0
    assert told.compared == int(movable.sum())
