"""Chrome traces: one slice an action, in microseconds."""

import json

import pytest

from conductor.errors import FormatError
from conductor.interop.chrome_trace import write_chrome_trace
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline

SPEC = PipelineSpec(
    num_ranks=2, num_microbatches=2, forward_ms=3.0, backward_input_ms=2.0, backward_weight_ms=1.0
)


def test_every_action_is_a_slice_of_its_rank(tmp_path):
    times = timeline(SPEC, build("zb-1p", SPEC))
    path = tmp_path / "trace.json"
    write_chrome_trace(times, path)
    events = json.loads(path.read_text())["traceEvents"]
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    assert len(slices) == times.program.num_actions == 12
    assert (slices["1F0"]["tid"], slices["1F0"]["ts"], slices["1F0"]["dur"]) == (1, 3000.0, 3000.0)
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["rank 0", "rank 1"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(FormatError, match="nowhere"):
        write_chrome_trace(timeline(SPEC, build("1f1b", SPEC)), tmp_path / "nowhere" / "t.json")
