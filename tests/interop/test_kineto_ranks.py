"""A profiler trace of torch's own pipelining and of ours on four real ranks."""

import numpy as np
import pytest

from conductor.interop.read_trace import read_trace
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.whatif.profile import traced_schedule
from conductor.whatif.receives import with_transfers
from conductor.whatif.whatif import analyse
from tests.interop.kineto_ranks import profiled
from tests.runtime.ranks import run_ranks

SECONDS = (0.01, 0.02, 0.01, 0.03)
SPEC = PipelineSpec(
    num_ranks=4, num_microbatches=6, forward_ms=1, backward_input_ms=1, backward_weight_ms=1
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b", "zb-1p"])
def test_the_order_and_the_work_are_read(tmp_path, name):
    plan = build(name, SPEC)
    results = run_ranks(profiled, 4, plan, SECONDS, tmp_path, 2)
    assert not [result for result in results if isinstance(result, Exception)]
    trace = read_trace(tmp_path)
    assert trace.notes == ()
    assert len(trace) == 4 * plan.num_actions
    for step in range(4):
        assert traced_schedule(trace, step) == plan
    ours = trace.where(trace.steps % 2 == 1)
    for (kind, stage), measured in results[0].items():
        if kind != "transfer":
            mine = (ours.operations == Kind[kind]) & (ours.stages == stage)
            # The range is opened just before our own clock is read, and closed just after.
            assert np.median(ours.duration_ms[mine]) == pytest.approx(np.median(measured), abs=1.0)
    # No action is shorter than its work, and none starts before its input has ended.
    backward = Kind.B if name == "1f1b" else Kind.I
    for kind, times in ((Kind.F, 1000.0), (backward, 2000.0)):
        mine = trace.operations == kind
        assert (trace.duration_ms[mine] >= times * np.array(SECONDS)[trace.stages[mine]]).all()
    assert with_transfers(trace).notes == ()
    assert analyse(trace).traced_ms.min() > 0.0
