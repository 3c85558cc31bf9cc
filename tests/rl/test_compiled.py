"""What is compiled without reference counts may call nothing that has them.

Such a call compiles only if something else has compiled the callee before: whether it does hangs on what a
process happened to do first, and on what is in the cache.
"""

import importlib
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

import conductor

ROOT = Path(conductor.__file__).parent
MODULES = [
    ".".join(("conductor", *path.relative_to(ROOT).with_suffix("").parts))
    for path in sorted(ROOT.rglob("kernels.py"))
]


def uncounted(function):
    return function.targetoptions.get("_nrt") is False


@pytest.mark.parametrize("name", MODULES)
def test_functions_without_counts_call_none_that_have_them(name):
    module = importlib.import_module(name)
    functions = {key: one for key, one in vars(module).items() if isinstance(one, Dispatcher)}
    calls = [
        (key, called)
        for key, one in functions.items()
        if uncounted(one)
        for called in one.py_func.__code__.co_names
        if called in functions and not uncounted(functions[called])
    ]
    assert functions
    assert calls == []
