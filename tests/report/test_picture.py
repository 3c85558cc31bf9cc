"""Pictures: the same colours, equal bytes for equal timelines, text that stays text."""

import re
import struct

import pytest

from conductor.errors import FormatError
from conductor.problem.kind import Kind
from conductor.problem.presets import load_preset
from conductor.report.colours import CAUSE_COLOURS, KIND_COLOURS, PALE, paler
from conductor.report.entry import memory_steps
from conductor.report.picture import STYLE, WIDTH_IN, draw_figure, write_picture
from conductor.report.simulated import migrated, simulated
from conductor.schedules.registry import build
from conductor.simulator.idle import IdleCause

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")


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


def test_memory_lies_under_each_timeline_with_its_limit(entries, svg, tmp_path):
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text())
    assert texts.count("memory: at most 4, limit 4") == 2
    assert {"activation memory", "memory limit"} <= set(texts)
    write_picture(entries, tmp_path / "without.svg", memory=False)
    assert "memory: at most" not in (tmp_path / "without.svg").read_text()


def test_memory_and_limit_are_drawn_at_their_height(entries):
    with matplotlib.rc_context(STYLE):
        figure = draw_figure(entries[:1])
    memory = figure.axes[1]
    rank = 2
    times, levels = memory_steps(entries[0].timeline, rank)
    area = memory.collections[3 * rank].get_paths()[0].vertices
    at_peak = area[area[:, 0] == times[levels.argmax()], 1].min()
    limit = memory.collections[3 * rank + 2].get_segments()[0][0, 1]
    # A limit of 4 takes 0.85 of the lane, whose bottom is 0.45 below its middle.
    assert limit == pytest.approx(rank + 0.45 - 0.85)
    assert at_peak == pytest.approx(rank + 0.45 - 0.85 * levels.max() / 4)


def test_later_stages_of_a_rank_are_underlined(tmp_path):
    spec = load_preset("gpt-like")
    for name, underlined in (("zb-1p", False), ("zb-v", True)):
        path = tmp_path / f"{name}.svg"
        write_picture([simulated(spec, build(name, spec), title=name)], path)
        assert ("a later stage of the rank" in path.read_text()) is underlined


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
