"""Hand-made plans for placements that no named schedule takes."""

from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.problem.kind import Kind


def split_gpipe(placement, num_microbatches):
    """All F, all I, all W; micro-batch by micro-batch over a rank's stages."""
    rows = []
    for rank in range(max(placement) + 1):
        stages = [stage for stage, owner in enumerate(placement) if owner == rank]
        rows.append(
            [
                Action(stage, kind, microbatch)
                for kind in (Kind.F, Kind.I, Kind.W)
                for microbatch in range(num_microbatches)
                for stage in (stages if kind is Kind.F else reversed(stages))
            ]
        )
    return Schedule.from_actions(
        rows, name="split-gpipe", stage_ranks=placement, num_microbatches=num_microbatches
    )
