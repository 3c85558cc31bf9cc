"""Timelines in our own JSON: what is written is what is read."""

import json

import numpy as np
import pytest

from conductor.errors import FormatError
from conductor.interop.read_trace import read_trace
from conductor.interop.timeline_json import read_timeline, write_timeline
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.simulator.simulate import timeline
from conductor.variation import UniformNoise

SPEC = PipelineSpec(
    num_ranks=4,
    num_microbatches=8,
    forward_ms=(3.0, 3.5, 4.0, 4.5),
    backward_input_ms=2.0,
    backward_weight_ms=1.0,
    transfer_ms=0.3,
)


def measured(name):
    order = build(name, SPEC)
    return timeline(
        SPEC, order, UniformNoise(0.2).sample(encode(SPEC, order), 1, np.random.default_rng(3))[0]
    )


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "seq1f1b", "dualpipe-v"])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_timeline_read_back_is_the_same(tmp_path, name, suffix):
    times = measured(name)
    path = tmp_path / f"t{suffix}"
    write_timeline(times, path)
    again = read_timeline(path)
    assert again.schedule == times.schedule
    assert again.spec == times.spec
    assert again.start_ms.tolist() == times.start_ms.tolist()
    assert again.end_ms.tolist() == times.end_ms.tolist()
    assert again.makespan_ms == times.makespan_ms
    assert again.idle_ms.tolist() == times.idle_ms.tolist()


def test_it_is_a_trace_too(tmp_path):
    times = measured("zb-1p")
    write_timeline(times, tmp_path / "t.json")
    trace = read_trace(tmp_path / "t.json")
    assert trace.operations.tolist() == times.schedule.kinds.tolist()
    assert trace.end_ms == pytest.approx(times.end_ms)


def broken(path, change):
    write_timeline(measured("1f1b"), path)
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("ranks"), "ranks: Field required"),
        (lambda v: v["ranks"][1].pop(), r"t\.json: "),
        (lambda v: v["ranks"][1][0].__setitem__(2, -1.0), "ends before it starts"),
        (lambda v: v["ranks"][1][0].__setitem__(0, "1X0"), "1X0"),
        (lambda v: v["spec"].__setitem__("forward_ms", -1.0), "forward_ms"),
        (lambda v: v["spec"].__setitem__("coffee", 1), "coffee"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, change, message):
    broken(tmp_path / "t.json", change)
    with pytest.raises(FormatError, match=message):
        read_timeline(tmp_path / "t.json")
