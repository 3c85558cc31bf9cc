"""Timers of Megatron-LM, in lines as its logger writes them."""

import pytest

from conductor.errors import FormatError
from conductor.interop.megatron_timers import read_megatron_timers

TIMES = {"num_ranks": 2, "num_microbatches": 4, "input_share": 0.6}


def block(prefix="", **timers):
    lines = ["times across ranks (ms):"]
    for name, times in timers.items():
        lines.append(f"  {name.replace('_', '-')}:")
        lines += [f"     rank {rank:2d}: {time:.2f}" for rank, time in enumerate(times)]
    return "".join(f"{prefix}{line}\n" for line in lines)


ITERATION = (
    " iteration       10/  500 | elapsed time per iteration (ms): 430.0 | lm loss: 2.9E+00 |\n"
)


def log(folder, *parts):
    path = folder / "job.log"
    path.write_text("".join(parts))
    return path


def iteration(slow=1.0, prefix=""):
    """Four ranks, two a pipeline rank."""
    return ITERATION + block(
        prefix,
        forward_backward=[999.0] * 4,
        forward_compute=[slow * t for t in (40.0, 44.0, 80.0, 80.0)],
        backward_compute=[slow * t for t in (100.0, 100.0, 200.0, 208.0)],
        forward_recv=[0.5, 0.5, 77.0, 77.0],
    )


@pytest.mark.parametrize("prefix", ["", "[default3]:", "INFO:megatron.core.timers:"])
def test_times_of_a_micro_batch_by_pipeline_rank(tmp_path, prefix):
    # The first iteration is slow, as first iterations are.
    path = log(
        tmp_path, "> done with setup ...\n", iteration(9.0, prefix), *[iteration(1.0, prefix)] * 2
    )
    spec = read_megatron_timers(path, **TIMES)
    assert spec.forward_ms == pytest.approx((10.5, 20.0))
    assert spec.backward_input_ms == pytest.approx((15.0, 30.6))
    assert spec.backward_weight_ms == pytest.approx((10.0, 20.4))
    assert (spec.name, spec.num_ranks, spec.num_microbatches) == ("job", 2, 4)


def test_a_block_that_is_cut_off_does_not_count(tmp_path):
    path = log(tmp_path, iteration(), iteration(5.0)[:250])
    assert read_megatron_timers(path, **TIMES).forward_ms == pytest.approx((10.5, 20.0))


EXTREMES = """(min, max) time across ranks (ms):
    forward-compute ................................: (40.00, 80.00)
    backward-compute ...............................: (100.00, 208.00)
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ITERATION, "no times across ranks in this log: .* --timing-log-option all"),
        (ITERATION + EXTREMES, "but those of the fastest and slowest rank"),
        (EXTREMES.replace("(min, max)", "max"), "but those of the fastest and slowest rank"),
        (block(forward_backward=[9.0] * 4), "no forward-compute .* --timing-log-level 2"),
        (iteration()[:250], "no .*compute.* in this log"),
        (block(forward_compute=[1.0] * 3), "3 ranks do not divide into 2 pipeline ranks"),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_sentence(tmp_path, text, message):
    with pytest.raises(FormatError, match=message):
        read_megatron_timers(log(tmp_path, text), **TIMES)
    with pytest.raises(FormatError, match="cannot read the log"):
        read_megatron_timers(tmp_path / "nowhere.log", **TIMES)
