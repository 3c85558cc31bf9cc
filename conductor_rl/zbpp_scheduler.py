"""The paper's zero-bubble heuristic by its name: lock-step rounds."""

from __future__ import annotations

from conductor.ir.schedule import FloatArray
from conductor.rl.evaluation import lock_step_ends
from conductor_rl.pipeline_simulator import PipelineSimulator


class ZBPPScheduler:
    """In each round every idle rank starts what it can, B before F before W (the paper's letters); then the
    clock goes to the latest end. Published zero-bubble schedules have no such barrier."""

    def __init__(self, simulator: PipelineSimulator) -> None:
        """Takes the simulator to schedule."""
        self.simulator = simulator

    def completion_times(self, durations_ms: FloatArray) -> FloatArray:
        """Makespans under realised durations of shape (draws, n), in the order of the simulator's program."""
        times: FloatArray = lock_step_ends(self.simulator.instance, durations_ms).max(axis=1)
        return times
