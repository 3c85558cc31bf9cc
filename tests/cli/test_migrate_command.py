"""`conductor migrate`: says what pays, says no, and refuses every bad input in one sentence."""

import json
import re

import pytest

from conductor.cli.app import main

SHAPE = ("--model-shape", "hidden=6144,heads=48,sequence=1024,layers=62")
LARGE = ("--preset", "gpt-28.3b-p32-m96", "--microbatches", "32", *SHAPE)


def run(capsys, *arguments):
    code = main(["migrate", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_nvlink_pairs_pay(capsys):
    code, out, err = run(
        capsys, *LARGE, "--hardware", "h100-nvlink", "--ranks-per-node", 2, "--json"
    )
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert list(answer) == ["pays", "reason", "pieces", "steps"]
    assert answer["pays"] is True
    assert [step["schedule"] for step in answer["steps"]] == ["zb-1p", "zb-v"]
    for step in answer["steps"]:
        assert step["with_ms"] <= step["without_ms"]
        assert step["lender_bytes"] <= 4e9
    assert answer["steps"][0]["gain"] > 0.03
    slices = {entry["link"]: entry for entry in answer["pieces"] if entry["piece"] == "mlp"}
    assert slices["nvlink"]["helped_ms"] < slices["infiniband"]["helped_ms"]
    assert slices["nvlink"]["why_not"] is None


def test_the_steps_by_blocks_are_shown_as_a_page(capsys, tmp_path):
    page = tmp_path / "blocks.html"
    command = ("--preset", "gpt-1.5b-p8-m24", "--microbatches", "8", "--ranks-per-node", "8",
               "--model-shape", "hidden=2304,heads=24,sequence=1024,layers=22")  # fmt: skip
    code, out, err = run(capsys, *command, "--report", page, "--json")
    assert code == 0
    assert err == f"wrote zb-1p, zb-1p, migrating, zb-v, zb-v, migrating to {page}\n"
    entries = json.loads(re.search(r"const PAGE = (.*);\n", page.read_text())[1])["entries"]
    steps = json.loads(out)["steps"]
    assert any(step["helps"] for step in steps)
    for step, alone, moved in zip(steps, entries[::2], entries[1::2], strict=True):
        assert alone["helpDoes"] == []
        assert len(moved["helpDoes"]) == step["helps"]
        assert all(re.fullmatch(r"\d+ of \d+ parts, \w+", text) for text in moved["helpDoes"])
        assert alone["makespan"] == pytest.approx(step["without_ms"])
        # Gradients of moved weights come home after the last action.
        assert moved["makespan"] <= step["with_ms"] + 1e-9


def test_the_step_of_the_simple_model_is_shown_as_a_page(capsys, tmp_path):
    page = tmp_path / "simple.html"
    code, _, err = run(capsys, "--preset", "paper", "--report", page)
    assert (code, err) == (0, f"wrote zb-1p, zb-1p, migrating to {page}\n")
    assert "of 32 parts" in page.read_text()


def test_a_slow_link_and_short_sequences_do_not(capsys):
    code, out, err = run(
        capsys, *LARGE, "--hardware", "h100-nvlink", "--link-gb-per-s", 16, "--json"
    )
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["pays"] is False
    assert answer["reason"].startswith("no: ")
    assert all(entry["parts"] == 0 and entry["why_not"] for entry in answer["pieces"])
    assert all(step["gain"] == 0.0 and step["helps"] == 0.0 for step in answer["steps"])


def test_the_table_says_what_pays(capsys):
    code, out, err = run(capsys, *LARGE, "--ranks-per-node", 2)
    assert (code, err) == (0, "")
    assert out.splitlines()[1].startswith("yes: ")
    assert "F heads: infiniband takes" in out


def test_without_a_shape_the_simple_model_plans(capsys):
    code, out, err = run(capsys, "--preset", "gpt-like", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["pays"] is True
    assert answer["makespan_ms"] < 0.97 * answer["best_order_ms"]
    assert 0.0 < answer["moved_share"] < 0.3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--model-shape", "hidden=64,heads=8,kv_heads=3,sequence=8,layers=4"),
            "does not divide by",
        ),
        (
            ("--model-shape", "hidden=64,heads=8,mlp_width=100,sequence=8,layers=4"),
            "mlp_width = 100",
        ),
        ((*SHAPE, "--lender-gb", "100"), "share of 100 GB does not fit the 80 GB"),
        ((*SHAPE, "--topology", "0,1;2,7"), "names rank 7, but there are 4 ranks"),
        ((*SHAPE, "--topology", "0,1;2,3", "--ranks-per-node", "2"), "give one of"),
        ((*SHAPE, "--hardware", "h100-nvlik"), "the nearest is 'h100-nvlink'"),
        ((*SHAPE, "--link-gb-per-s", "0"), "bandwidth must be above 0"),
        (
            ("--model-shape", "hidden=64,heads=8,sequence=8,layers=1"),
            "1 layers do not fill 4 stages",
        ),
        (("--hardware", "h100-nvlink"), "need --model-shape"),
    ],
)
def test_bad_input_is_one_sentence(capsys, arguments, message):
    code, out, err = run(capsys, "--preset", "gpt-like", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_spec_that_no_order_fits(capsys, tmp_path):
    spec = tmp_path / "tight.json"
    spec.write_text(
        json.dumps(
            {
                "num_ranks": 4, "num_microbatches": 8, "forward_ms": 10, "backward_input_ms": 10,
                "backward_weight_ms": 7, "memory_limit": 0.5,
            }
        )
    )  # fmt: skip
    code, out, err = run(capsys, "--spec", spec)
    assert (code, out) == (2, "")
    assert "no order to start from fits" in err
