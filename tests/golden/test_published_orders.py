"""Every published order: the same makespan, stage span, memory and actions."""

from __future__ import annotations

import pytest

from conductor.simulator.simulate import timeline
from tests.golden.published import (
    ORDERS,
    RECORDS,
    YARDSTICKS,
    Record,
    order_hash,
    order_of,
    spec_of,
)

pytestmark = pytest.mark.skipif(
    not RECORDS, reason="the published golden data is not beside this checkout"
)


def _label(record: Record) -> str:
    return "-".join(str(record[key]) for key in ("name", "p", "m", "cs"))


def test_every_record_is_covered() -> None:
    assert {order_of(record) for record in RECORDS} == {*ORDERS, *YARDSTICKS}


@pytest.mark.parametrize(
    "record", [record for record in RECORDS if order_of(record) in ORDERS], ids=_label
)
def test_published_order(record: Record) -> None:
    spec = spec_of(record)
    schedule = ORDERS[order_of(record)](spec)
    times = timeline(spec, schedule)

    assert order_hash(schedule, last_in_first_out=record["name"] == "light") == record["sha"]
    assert times.makespan_ms == pytest.approx(record["makespan"], rel=1e-6)
    assert times.stage_span_ms == pytest.approx(record["cost"], rel=1e-6)
    assert times.bubble_ratio == pytest.approx(record["bub_makespan"], abs=1e-5)
    assert times.stage_span_bubble_ratio == pytest.approx(record["bub_cost"], abs=1e-5)
    assert list(times.peak_memory) == pytest.approx(record["peak"], rel=1e-6)
    assert schedule.num_actions == record["nops"]
