"""`conductor report`: what it shows of which input, and every bad input."""

import json
import re
import sys

import pytest

from conductor.cli.app import main
from conductor.interop.timeline_json import write_timeline
from conductor.interop.torch_csv import write_torch_csv
from conductor.planning.plan import plan
from conductor.problem.presets import load_preset
from conductor.report.simulated import migrated
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline

GPT = ("--preset", "gpt-like")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments):
    code = main(["report", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def titles(path):
    data = json.loads(re.search(r"const PAGE = (.*);\n", path.read_text())[1])
    return [entry["title"] for entry in data["entries"]]


def order(path, name="zb-1p", preset="gpt-like"):
    write_torch_csv(build(name, load_preset(preset)), path)
    return path


def test_a_preset_alone_is_planned_and_its_best_orders_are_shown(capsys, here):
    code, out, err = run(capsys, *GPT)
    assert (code, out) == (0, "")
    assert err == "wrote {}, {}, {} to report.html\n".format(*titles(here / "report.html"))
    best = plan(load_preset("gpt-like"))
    shown = titles(here / "report.html")
    assert shown[0] == best.best.name
    # Equal orders are shown once.
    found = {candidate.name: candidate.schedule for candidate in best.candidates}
    assert len({found[name] for name in shown}) == 3


def test_files_and_named_schedules_are_shown_side_by_side(capsys, here):
    order(here / "mine.csv")
    spec = load_preset("gpt-like")
    write_timeline(timeline(spec, build("1f1b", spec)), here / "measured.json")
    run(capsys, "mine.csv", "measured.json", *GPT, "--schedule", "gpipe", "--schedule", "v-half")
    assert titles(here / "report.html") == ["measured", "mine", "v-half"]


def test_work_that_moved_in_a_run_is_shown(capsys, here):
    spec = load_preset("paper")
    entry = migrated(spec, build("zb-1p", spec), title="moved")
    write_timeline(entry.timeline, here / "step.json", helps=entry.helps)
    run(capsys, "step.json")
    shown = json.loads(re.search(r"const PAGE = (.*);\n", (here / "report.html").read_text())[1])
    assert shown["entries"][0]["helpDoes"] == [f"{n} of 32 parts" for n in entry.helps.parts]


def test_steps_of_a_trace_are_shown(capsys, here, shared_data):
    job = shared_data / "straggler-traces" / "trace-SE.parquet"
    code, _, _ = run(capsys, job, "--steps", "5", "--dp-rank", "1", "-o", "run.html")
    assert code == 0
    assert len(titles(here / "run.html")) == 5
    assert 'max="5" value="1"' in (here / "run.html").read_text()


def test_a_table_is_a_run_too(capsys, here):
    lines = ["rank,stage,kind,microbatch,start_ms,duration_ms", "0,0,F,0,0,2", "0,0,B,0,2,3"]
    (here / "table.csv").write_text("\n".join(lines))
    assert run(capsys, "table.csv")[0] == 0
    assert titles(here / "report.html") == ["table, step 0"]


def test_alike_names_get_their_folders(capsys, here):
    for folder in ("a", "b"):
        (here / folder).mkdir()
        order(here / folder / "best.csv")
    run(capsys, "a/best.csv", "b/best.csv", *GPT)
    assert titles(here / "report.html") == ["a/best", "b/best"]


def test_migration_stands_beside_the_order(capsys, here):
    order(here / "zb.csv", preset="paper")
    run(capsys, "zb.csv", "--preset", "paper", "--migrate", "-o", "m.html")
    assert titles(here / "m.html") == ["zb", "zb, migrating"]


def test_ready_first_is_another_timeline(capsys, here):
    order(here / "f.csv", "1f1b", "paper")
    run(capsys, "f.csv", "--preset", "paper", "--execution", "ready-first")
    assert "ready-first execution" in (here / "report.html").read_text()


@pytest.mark.parametrize("name", ["timeline.svg", "timeline.png", "timeline.pdf"])
def test_pictures(capsys, here, name):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    code, _, err = run(capsys, *GPT, "--schedule", "zb-v", "-o", name)
    assert (code, err) == (0, f"wrote zb-v to {name}\n")
    assert (here / name).stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give one of --preset NAME and --spec FILE"),
        (("nothing.csv",), "give one of --preset NAME and --spec FILE"),
        (("nothing.csv", *GPT), "nothing.csv: cannot read the schedule"),
        ((*GPT, "-o", "report.docx"), "report.docx: a report ends in .html"),
        (("measured.json", *GPT), "runs bring their own spec"),
        (("no.parquet",), "no.parquet: no such file"),
        ((*GPT, "--schedule", "zb-9"), "zb-9"),
    ],
)
def test_bad_input_is_one_sentence(capsys, here, arguments, message):
    spec = load_preset("gpt-like")
    write_timeline(timeline(spec, build("1f1b", spec)), here / "measured.json")
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("conductor: ")
    assert err.count("\n") == 1
    assert message in err
    assert not list(here.glob("report.*"))


def test_a_picture_without_matplotlib_names_the_extra(capsys, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run(capsys, *GPT, "-o", "timeline.png")
    assert code == 2
    assert "pip install 'conductor-pipeline[report]'" in err
