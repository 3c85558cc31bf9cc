"""Pictures: the same colours, equal bytes for equal timelines, text that stays text."""

import re
import struct

import pytest

from conductor.errors import FormatError
from conductor.problem.kind import Kind
from conductor.problem.presets import load_preset
from conductor.report.colours import CAUSE_COLOURS, KIND_COLOURS, PALE, paler
from conductor.report.picture import WIDTH_IN, write_picture
from conductor.report.simulated import migrated, simulated
from conductor.schedules.registry import build
from conductor.simulator.idle import IdleCause

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.fixture(scope="module")
def entries():
    spec = load_preset("paper")
    schedule = build("zb-1p", spec)
    return [
        simulated(spec, schedule, title="zb-1p"),
        migrated(spec, schedule, title="zb-1p, migrating"),
    ]


@pytest.fixture(scope="module")
def svg(entries, tmp_path_factory):
    path = tmp_path_factory.mktemp("picture") / "timeline.svg"
    write_picture(entries, path)
    return path


def test_the_text_of_an_svg_is_text(entries, svg):
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text())
    makespans = [entry.timeline.makespan_ms for entry in entries]
    for entry, makespan in zip(entries, makespans, strict=True):
        assert f"{entry.title}: {makespan:.1f} ms" in texts
    assert {"rank 0", "rank 3", "time in ms", "helps another rank"} <= set(texts)


def test_every_action_has_its_colour(entries, svg):
    text = svg.read_text()
    for kind in (Kind.F, Kind.I, Kind.W):
        assert f"fill: {KIND_COLOURS[kind]}" in text
    assert f"fill: {KIND_COLOURS[Kind.B]}" not in text
    for cause in IdleCause:
        if entries[0].timeline.idle_ms[cause].any():
            assert paler(CAUSE_COLOURS[cause], PALE) in text


def test_equal_timelines_give_equal_files(entries, svg, tmp_path):
    write_picture(entries, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == svg.read_bytes()


def test_a_png_is_as_wide_as_two_columns(entries, tmp_path):
    path = tmp_path / "timeline.png"
    write_picture(entries[:1], path)
    raw = path.read_bytes()
    assert raw.startswith(b"\x89PNG")
    assert struct.unpack(">I", raw[16:20]) == (300 * WIDTH_IN,)


def test_many_actions_are_pixels_in_an_svg(tmp_path):
    spec = load_preset("gpt-14.6b-p16-m128")
    path = tmp_path / "many.svg"
    write_picture([simulated(spec, build("zb-1p", spec), title="many")], path)
    text = path.read_text()
    assert "<image" in text
    assert "many: " in text
    assert len(text) < 1_000_000


def test_a_picture_that_cannot_be_written_says_so(entries, tmp_path):
    with pytest.raises(FormatError, match="cannot write the picture"):
        write_picture(entries, tmp_path / "missing" / "timeline.png")
