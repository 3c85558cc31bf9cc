"""The page's text: what is in it, and that nothing outside is needed."""

import base64
import gzip
import json
import re
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.cli.console import KIND_STYLES
from conductor.errors import FormatError
from conductor.problem.kind import Kind
from conductor.problem.presets import load_preset
from conductor.report.colours import KIND_COLOURS
from conductor.report.entry import Entry
from conductor.report.pack import pack
from conductor.report.page import page, write_page
from conductor.report.simulated import simulated
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline
from tests.strategies import problems


def unpacked(packed):
    raw = gzip.decompress(base64.b64decode(packed["data"]))
    return np.frombuffer(raw, f"<{packed['type']}")


@settings(max_examples=20)
@given(problem=problems(), execution=st.sampled_from(["static", "ready-first"]))
def test_packed_arrays_are_the_timeline(problem, execution):
    drawn = timeline(*problem, execution=execution)
    packed = pack(Entry(title="drawn", note="", timeline=drawn))
    arrays = {name: unpacked(value) for name, value in packed["arrays"].items()}
    sequence = drawn.sequence
    for name, times in (("start", drawn.start_ms), ("end", drawn.end_ms)):
        assert arrays[name] * packed["tick"] == pytest.approx(times[sequence], abs=packed["tick"])
    assert arrays["kind"].tolist() == drawn.program.kinds[sequence].tolist()
    assert arrays["microbatch"].tolist() == drawn.program.microbatches[sequence].tolist()
    assert sequence[arrays["path"]].tolist() == drawn.critical_path.tolist()
    amounts = np.array(packed["allocated"])[arrays["kind"], arrays["stage"]]
    assert amounts.tolist() == drawn.program.allocated[sequence].tolist()
    # What an action waited for ended last of its inputs.
    for place, source in enumerate(arrays["source"]):
        inputs = drawn.program.inputs[sequence[place]]
        assert (source < 0) == (inputs[0] < 0)
        if source >= 0:
            arrival = drawn.end_ms[inputs] + drawn.program.input_lag_ms[sequence[place]]
            assert arrival[inputs == sequence[source]] == arrival[inputs >= 0].max()


@pytest.fixture(scope="module")
def text():
    spec = load_preset("gpt-like")
    entry = simulated(spec, build("zb-v", spec), title="zb-v </script><b>")
    return page([entry], title="A & <B>", note="note")


def test_names_cannot_break_the_page(text):
    assert "<title>A &amp; &lt;B&gt;</title>" in text
    assert "</script><b>" not in text
    assert text.count("<script>") == text.count("</script>") == 2
    assert not re.findall(r"\{\{\w+\}\}", text)


def test_the_page_loads_nothing(text):
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["data:,"]
    assert "default-src 'none'" in text
    assert not re.search(r"\bfetch\(|XMLHttpRequest|@import|url\(", text)


def test_its_data_is_json(text):
    data = json.loads(re.search(r"const PAGE = (.*);\n", text)[1])
    assert [kind["letter"] for kind in data["kinds"]] == [kind.name for kind in Kind]
    assert data["entries"][0]["title"] == "zb-v </script><b>"


def test_the_library_is_the_version_that_is_named(text):
    folder = files("conductor.report") / "assets" / "uplot"
    version = (folder / "VERSION").read_text().split(",")[0].removeprefix("uPlot ")
    assert f"uPlot (v{version})" in text
    assert (folder / "LICENSE").read_text().startswith("The MIT License")


def test_colours_are_the_terminals():
    assert {kind: style.split(" on ")[1] for kind, style in KIND_STYLES.items()} == {
        kind.name: colour for kind, colour in KIND_COLOURS.items()
    }


def test_a_page_that_cannot_be_written_says_so(tmp_path):
    spec = load_preset("gpt-like")
    entry = simulated(spec, build("1f1b", spec), title="1f1b")
    with pytest.raises(FormatError, match="cannot write the report"):
        write_page([entry], tmp_path / "missing" / "page.html", title="t")
