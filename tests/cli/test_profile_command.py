"""`conductor profile --megatron-log`: the table, the JSON, the spec file."""

import json

from conductor.cli.app import main
from conductor.problem.spec_file import load_spec

LOG = """times across ranks (ms):
  forward-compute:
     rank  0: 40.00
     rank  1: 80.00
  backward-compute:
     rank  0: 100.00
     rank  1: 200.00
"""


def run(capsys, tmp_path, *more):
    (tmp_path / "job.log").write_text(LOG)
    arguments = ["--ranks", "2", "--microbatches", "4", "--input-share", "0.6", *more]
    code = main(["profile", "--megatron-log", str(tmp_path / "job.log"), *arguments])
    return code, *capsys.readouterr()


def test_the_table_and_the_file(capsys, tmp_path):
    code, out, err = run(capsys, tmp_path, "--out", str(tmp_path / "job.toml"))
    assert (code, err) == (0, "")
    assert out.split()[-8:] == ["0", "10.00", "15.00", "10.00", "1", "20.00", "30.00", "20.00"]
    spec = load_spec(tmp_path / "job.toml")
    assert (spec.forward_ms, spec.num_ranks, spec.num_microbatches) == ((10.0, 20.0), 2, 4)


def test_json(capsys, tmp_path):
    code, out, _ = run(capsys, tmp_path, "--json")
    assert code == 0
    assert json.loads(out)["backward_input_ms"] == [15.0, 30.0]


def test_a_log_without_timers_is_one_sentence(capsys, tmp_path):
    (tmp_path / "empty.log").write_text("training ...\n")
    assert main(["profile", "--megatron-log", str(tmp_path / "empty.log")]) == 2
    assert "--timing-log-option all" in capsys.readouterr().err
