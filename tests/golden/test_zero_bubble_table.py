"""The Zero Bubble paper's table of bubble rates on its profiles (ICLR 2024), to four decimals."""

from __future__ import annotations

import pytest

from conductor.problem.presets import load_preset
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline

# Bubble by stage span of 1F1B, ZB-1p and ZB-2p, and by makespan of ZB-2p.
TABLE = {
    "gpt-1.5b-p8-m24": (0.2431, 0.1585, 0.0433, 0.1083),
    "gpt-1.5b-p8-m32": (0.1985, 0.1242, 0.0039, 0.0835),
    "gpt-1.5b-p8-m64": (0.1240, 0.0674, 0.0026, 0.0439),
    "gpt-6.2b-p8-m24": (0.2347, 0.1323, 0.0029, 0.1003),
    "gpt-6.2b-p8-m32": (0.1898, 0.1045, 0.0022, 0.0778),
    "gpt-6.2b-p8-m64": (0.1091, 0.0554, 0.0010, 0.0405),
    "gpt-14.6b-p16-m48": (0.2552, 0.1397, 0.0066, 0.1065),
    "gpt-14.6b-p16-m64": (0.2082, 0.1088, 0.0054, 0.0820),
    "gpt-14.6b-p16-m128": (0.1251, 0.0576, 0.0028, 0.0427),
    "gpt-28.3b-p32-m96": (0.2646, 0.1421, 0.0038, 0.1098),
    "gpt-28.3b-p32-m128": (0.2168, 0.1106, 0.0029, 0.0847),
    "gpt-28.3b-p32-m256": (0.1352, 0.0594, 0.0018, 0.0443),
}


@pytest.mark.parametrize(("preset", "row"), TABLE.items(), ids=TABLE)
def test_bubble_rates(preset: str, row: tuple[float, ...]) -> None:
    spec = load_preset(preset)
    one_f_one_b, zb_1p, zb_2p = (
        timeline(spec, build(name, spec, objective="stage-span"))
        for name in ("1f1b", "zb-1p", "zb-2p")
    )
    rates = (
        one_f_one_b.stage_span_bubble_ratio,
        zb_1p.stage_span_bubble_ratio,
        zb_2p.stage_span_bubble_ratio,
        zb_2p.bubble_ratio,
    )
    assert tuple(round(rate, 4) for rate in rates) == row
