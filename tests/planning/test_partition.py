"""Partition of layers: the exact step, memory, refinement, files, the command."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from conductor.cli.app import main
from conductor.errors import DoesNotFitError, FormatError, InvalidSpecError
from conductor.ir.validate import validate
from conductor.planning.layers import Layer, load_layers
from conductor.planning.partition import partition
from conductor.problem.spec_file import load_spec

BLOCK = {"forward_ms": 10, "backward_input_ms": 10, "backward_weight_ms": 7,
         "activation_memory": 1, "weight_memory": 3}  # fmt: skip


def model(num_blocks: int) -> list[Layer]:
    """An embedding that costs little, blocks, and a head that costs more than a block."""
    return [
        Layer(name="embedding", forward_ms=1, backward_input_ms=0, backward_weight_ms=2),
        *(Layer(name=f"block.{k}", **BLOCK) for k in range(num_blocks)),
        Layer(name="head", forward_ms=15, backward_input_ms=12, backward_weight_ms=13),
    ]


@pytest.mark.parametrize("placement", ["sequential", "loop", "v"])
def test_the_fullest_rank_has_least_work_and_every_layer_is_somewhere(placement):
    layers = model(14)
    split = partition(layers, 4, num_microbatches=8, placement=placement, refine=False)
    per_rank = 1 if placement == "sequential" else 2
    ranks = split.spec.stage_ranks
    assert tuple(itertools.chain(*split.stages)) == tuple(layers)
    least = np.inf
    for inner in itertools.combinations(range(1, 16), 4 * per_rank - 1):
        work = np.zeros(4)
        for stage, (start, end) in enumerate(itertools.pairwise((0, *inner, 16))):
            work[ranks[stage]] += sum(layer.total_ms for layer in layers[start:end])
        least = min(least, work.max())
    assert split.is_proved
    assert split.least_rank_ms == split.rank_ms.max() == pytest.approx(least)


def test_the_spec_holds_the_sums_of_its_layers_and_the_memory_that_weights_leave():
    split = partition(model(10), 3, num_microbatches=6, memory_limit=40, transfer_ms=0.5)
    sums = [sum(layer.forward_ms for layer in stage) for stage in split.stages]
    assert split.spec.forward_ms == pytest.approx(sums)
    weights = [sum(layer.weight_memory for layer in stage) for stage in split.stages]
    assert split.spec.memory_limit == pytest.approx([40 - held for held in weights])
    validate(split.candidate.schedule, split.spec)


def test_weights_and_activations_stay_within_the_limit_of_every_rank():
    layers = model(16)
    free = partition(layers, 4, num_microbatches=16, refine=False)
    tight = partition(layers, 4, num_microbatches=16, memory_limit=23, refine=False)

    def held(split):
        weights = [sum(layer.weight_memory for layer in stage) for stage in split.stages]
        return np.add(weights, split.candidate.timeline.peak_memory)

    assert held(free).max() > 23
    assert held(tight).max() <= 23


def test_refinement_never_ends_later():
    plain, refined = (
        partition(model(13), 4, num_microbatches=8, transfer_ms=0.4, refine=refine)
        for refine in (False, True)
    )
    assert refined.candidate.timeline.makespan_ms <= plain.candidate.timeline.makespan_ms
    assert refined.least_rank_ms == plain.least_rank_ms <= refined.rank_ms.max()


def test_three_stages_a_rank_still_give_a_split():
    split = partition(
        model(22), 4, num_microbatches=8, placement="loop", stages_per_rank=3, refine=False
    )
    assert len(split.stages) == 12
    assert split.least_rank_ms <= split.rank_ms.max()


def test_too_little_memory_names_rank_and_amount():
    with pytest.raises(DoesNotFitError, match=r"rank \d, which has 7: 1 is missing"):
        partition(model(8), 4, num_microbatches=8, memory_limit=7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_ranks": 0}, "num_ranks must be at least 1"),
        ({"num_microbatches": 0}, "num_microbatches must be at least 1"),
        ({"placement": "ring"}, "placement must be one of"),
        ({"stages_per_rank": 3}, "no schedule takes sequential placement with 3 stages"),
        ({"num_ranks": 6, "placement": "v"}, "10 layers cannot fill 12 stages"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    with pytest.raises(InvalidSpecError, match=message):
        partition(model(8), **{"num_ranks": 2, "num_microbatches": 4, **change})


def layers_file(tmp_path, rows):
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"layers": rows}))
    return path


def test_a_layers_file_repeats_counted_rows(tmp_path):
    path = layers_file(
        tmp_path, [{"name": "block", "count": 3, **BLOCK}, {"name": "head", **BLOCK}]
    )
    layers = load_layers(path)
    assert [layer.name for layer in layers] == ["block.0", "block.1", "block.2", "head"]
    assert layers[0] == Layer(name="block.0", **BLOCK)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"name": "a", **BLOCK, "forward_ms": -1}, r"layers\[0\].forward_ms: .*greater"),
        ({"name": "a", **BLOCK, "forward_ms": "1"}, r"layers\[0\].forward_ms: .*number"),
        ({"name": "a", **BLOCK, "cost": 1}, r"layers\[0\].cost: unknown key"),
        ({"name": "a", "forward_ms": 1, "backward_weight_ms": 1}, "backward_input_ms: .*required"),
        ({"name": "a", **BLOCK, "count": 0}, r"layers\[0\].count"),
    ],
)
def test_a_wrong_layers_file_is_refused_by_entry_and_field(tmp_path, row, message):
    with pytest.raises(FormatError, match=message):
        load_layers(layers_file(tmp_path, [row]))


def test_the_command_writes_a_spec_that_can_be_planned(tmp_path, capsys):
    path = layers_file(tmp_path, [{"name": "block", "count": 9, **BLOCK}])
    out = tmp_path / "spec.toml"
    arguments = ["partition", str(path), "--ranks", "4", "--placement", "v", "--microbatches", "8"]
    assert main([*arguments, "--out", str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert sum(len(stage) for stage in answer["stages"]) == 9
    assert answer["stage_ranks"] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert load_spec(out).num_stages == 8
    assert main(["plan", "--spec", str(out)]) == 0
    assert main(arguments) == 0
    assert "block.0" in capsys.readouterr().out


def test_the_command_refuses_a_missing_file_with_exit_code_2(tmp_path, capsys):
    assert main(["partition", str(tmp_path / "none.json"), "--ranks", "2"]) == 2
    assert "cannot read the layers" in capsys.readouterr().err
