"""Write a schedule by hand, check it, draw it, and see what it takes."""

import conductor
from conductor.errors import InvalidScheduleError
from conductor.ir.action import Action
from conductor.ir.draw import draw
from conductor.ir.draw_timeline import draw_timeline
from conductor.ir.schedule import Schedule
from conductor.ir.validate import validate

ROWS = """
0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
1F0 1F1 1I0 1F2 1I1 1F3 1I2 1W0 1I3 1W1 1W2 1W3
2F0 2I0 2F1 2I1 2F2 2I2 2F3 2I3 2W0 2W1 2W2 2W3
"""


def parse(text: str) -> Schedule:
    """One line a rank, one stage each."""
    rows = [[Action.parse(word) for word in line.split()] for line in text.strip().splitlines()]
    return Schedule.from_actions(
        rows, name="by hand", stage_ranks=range(len(rows)), num_microbatches=4
    )


spec = conductor.PipelineSpec(
    name="three ranks", num_ranks=3, num_microbatches=4,
    forward_ms=10, backward_input_ms=11, backward_weight_ms=6, memory_limit=4,
)  # fmt: skip
schedule = parse(ROWS)
validate(schedule, spec)
print(draw(schedule))
print(draw_timeline(conductor.timeline(spec, schedule)))

try:
    validate(parse(ROWS.replace("0F0 0F1 0F2 0B0", "0F0 0B0 0F1 0F2")))
except InvalidScheduleError as error:
    print(error)
