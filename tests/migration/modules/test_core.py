"""Core attention without a graph, by the flash kernel and without; and what the modules save."""

import pytest
import torch
from torch.nn import functional

from conductor.migration.modules.convert import migratable
from conductor.migration.modules.core import Settings, attend, attend_backward
from conductor.migration.modules.loopback import LoopbackHelper
from conductor.runtime.gpt import GPTConfig, GPTStage
from conductor.runtime.llama import LlamaConfig, LlamaStage


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("mask", [None, torch.rand(7, 7) < 0.6])
def test_attention_without_a_graph(flash, mask):
    query = torch.randn(2, 4, 7, 8, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(2, 2, 7, 8, dtype=torch.float64, requires_grad=True) for _ in "kv")
    mask = None if mask is None else mask | torch.eye(7, dtype=torch.bool)
    output = functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, scale=0.3, enable_gqa=True
    )
    grad = torch.randn_like(output)
    expected = [output, *torch.autograd.grad(output, (query, key, value), grad)]
    settings = Settings(causal=mask is None, scale=0.3, flash=flash)
    with torch.no_grad():
        kept = attend(query, key, value, mask, settings)
        got = [kept[0], *attend_backward(grad, query, key, value, mask, kept, settings)]
    for one, other in zip(expected, got, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_a_module_that_may_move_saves_no_more_than_the_plain_one(name):
    def saved_bytes(converted):
        if name == "gpt":
            config = GPTConfig(num_layers=1, d_model=64)
            model = GPTStage(config, 1, is_first=False, is_last=False)
        else:
            model = LlamaStage(LlamaConfig(num_layers=1), 1, is_first=False, is_last=False)
        if converted:
            migratable(model).helper = LoopbackHelper()
        storages = {}

        def keep(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(torch.randn(2, 16, 64))
        return sum(storage.nbytes() for storage in storages.values())

    marks = 256  # one byte a column says whether it is there
    assert saved_bytes(True) <= saved_bytes(False) + marks
