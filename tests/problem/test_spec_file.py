"""Spec files: round trips, and one sentence for everything that can be wrong."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import ConductorError, FormatError, InvalidSpecError
from conductor.problem.presets import load_preset, preset_names
from conductor.problem.spec import PipelineSpec
from conductor.problem.spec_file import load_spec, save_spec

GOOD = """\
num_ranks = 2
num_microbatches = 4
forward_ms = [10, 11.5]
backward_input_ms = 10
backward_weight_ms = 7
"""


def written(tmp_path, text, name="spec.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def complaint(path) -> str:
    with pytest.raises(ConductorError) as error:
        load_spec(path)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


def test_a_toml_file_gives_the_spec_named_after_the_file(tmp_path):
    spec = load_spec(written(tmp_path, GOOD, "mine.toml"))
    assert spec == PipelineSpec(
        name="mine", num_ranks=2, num_microbatches=4,
        forward_ms=(10.0, 11.5), backward_input_ms=10.0, backward_weight_ms=7.0,
    )  # fmt: skip


def test_a_json_file_gives_the_same(tmp_path):
    values = {
        "num_ranks": 2, "num_microbatches": 4, "forward_ms": [10, 11.5],
        "backward_input_ms": 10, "backward_weight_ms": 7, "name": "spec",
    }  # fmt: skip
    from_json = load_spec(written(tmp_path, json.dumps(values), "spec.json"))
    assert from_json == load_spec(written(tmp_path, GOOD))


@pytest.mark.parametrize("suffix", [".toml", ".json"])
@pytest.mark.parametrize("name", preset_names())
def test_presets_survive_writing_and_reading(tmp_path, name, suffix):
    save_spec(load_preset(name), tmp_path / f"out{suffix}")
    again = load_spec(tmp_path / f"out{suffix}")
    assert again == load_preset(name)
    assert again.source == load_preset(name).source


@given(
    numbers=st.lists(st.floats(0, 1e12), min_size=3, max_size=3),
    text=st.text(st.characters(codec="utf-8")),
    placement=st.sampled_from(["loop", (0, 1, 0), (1, 0, 1)]),
    suffix=st.sampled_from([".toml", ".json"]),
)
def test_any_numbers_and_texts_survive(tmp_path_factory, numbers, text, placement, suffix):
    spec = PipelineSpec(
        name=text, num_ranks=3 if placement == "loop" else 2, num_microbatches=1,
        placement=placement, forward_ms=tuple(numbers), backward_input_ms=numbers[0],
        backward_weight_ms=numbers[1], memory_limit=numbers[2],
    )  # fmt: skip
    path = tmp_path_factory.mktemp("specs") / f"spec{suffix}"
    save_spec(spec, path)
    assert load_spec(path) == spec


def test_an_unknown_key_is_named_with_its_line_and_the_nearest(tmp_path):
    path = written(tmp_path, GOOD + "transfer_mss = 1\n")
    assert complaint(path) == ", line 6: unknown key 'transfer_mss' (did you mean transfer_ms?)"


def test_an_unknown_table_is_named_with_its_line(tmp_path):
    path = written(tmp_path, GOOD + "[a.b]\nc = 1\n[tool-x]\n")
    assert complaint(path) == ": unknown key 'a'"
    path = written(tmp_path, GOOD + "\n[tool]\nc = 1\n")
    assert complaint(path) == ", line 7: unknown key 'tool'"


def test_lines_are_found_in_json_too(tmp_path):
    path = written(tmp_path, '{\n "num_rank": 2,\n\n "wrong": 3\n}', "spec.json")
    assert complaint(path) == ", line 2: unknown key 'num_rank' (did you mean num_ranks?)"
    path = written(
        tmp_path,
        '{"num_microbatches": 1, "forward_ms": 1,\n"backward_input_ms": 1, "backward_weight_ms": 1,'
        '\n"num_ranks": "two"}',
        "spec.json",
    )
    assert complaint(path) == ', line 3: num_ranks must be a whole number, not "two"'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('num_ranks = "two"', 'num_ranks must be a whole number, not "two"'),
        ("num_ranks = 2.5", "num_ranks must be a whole number, not 2.5"),
        ("num_ranks = true", "num_ranks must be a whole number, not true"),
        ("num_ranks = 0", "num_ranks must be a whole number of at least 1, not 0"),
        ("transfer_ms = true", "transfer_ms must be a number or a list of numbers, not true"),
        ('forward_ms = ["a", 1]', 'forward_ms must be a number or a list of numbers, not "a"'),
        ("forward_ms = [1, 2, 3]", "forward_ms lists 3 numbers for 2 stages"),
        ("forward_ms = -1", "forward_ms must be a number of at least 0, not -1.0"),
        ("forward_ms = [\n 1,\n -2]", "forward_ms[1] must be a number of at least 0, not -2.0"),
        ("forward_ms = nan", "forward_ms must be a number of at least 0, not nan"),
        ("blocking_transfers = 1", "blocking_transfers must be true or false, not 1"),
        ("freed_at_backward_input = 1.5", "freed_at_backward_input is a share in [0, 1], not 1.5"),
        ("name = 3", "name must be a text, not 3"),
        ('placement = "w"', 'placement must be sequential, loop, v or a list of ranks, not "w"'),
        ("placement = [0, 2]", "placement puts stage 1 on rank 2, but num_ranks is 2"),
        ("placement = [0, 0]", "placement gives rank 1 no stage"),
        ("memory_limit = 1979-05-27", 'memory_limit must be a number or a list of numbers,'
         ' not "1979-05-27"'),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_file_line_and_field(tmp_path, line, message):
    key = line.split(" ")[0]
    lines = [row for row in GOOD.splitlines() if not row.startswith(key + " ")]
    path = written(tmp_path, "\n".join([*lines, line]))
    assert complaint(path) == f", line {len(lines) + 1}: {message}"


def test_a_missing_key_is_named(tmp_path):
    path = written(tmp_path, GOOD.replace("num_microbatches = 4\n", ""))
    assert complaint(path) == ": num_microbatches is missing"


def test_a_syntax_error_names_its_line(tmp_path):
    assert "line 2" in complaint(written(tmp_path, "num_ranks = 2\nforward_ms =\n"))
    assert "line 2" in complaint(written(tmp_path, '{"num_ranks": 2,\n}', "spec.json"))


def test_a_list_is_no_spec(tmp_path):
    assert "one object" in complaint(written(tmp_path, "[1]", "spec.json"))


def test_unreadable_files_are_refused(tmp_path):
    assert "No such file" in complaint(tmp_path / "absent.toml")
    assert "ends in .toml or .json" in complaint(written(tmp_path, GOOD, "spec.yaml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in complaint(tmp_path / "binary.toml")
    with pytest.raises(FormatError, match="ends in"):
        save_spec(load_preset("paper"), tmp_path / "spec.yaml")


def test_a_file_can_only_raise_our_errors_with_its_value_wrong(tmp_path):
    path = written(tmp_path, GOOD.replace("forward_ms = [10, 11.5]", "forward_ms = -3"))
    with pytest.raises(InvalidSpecError, match="forward_ms"):
        load_spec(path)
