"""`import conductor`: quick, light, and with everything that the README names."""

import subprocess
import sys

import pytest

import conductor

HEAVY = {"numba", "torch", "ortools", "gymnasium", "pydantic"}


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_import_loads_nothing_heavy():
    loaded = run("import conductor, sys; print(*{name.split('.')[0] for name in sys.modules})")
    assert not HEAVY & set(loaded.split())


def test_specs_and_presets_need_no_compiler_and_no_torch():
    loaded = run(
        "import conductor, sys; conductor.load_preset('paper'), conductor.PipelineSpec;"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    assert not HEAVY & set(loaded.split())


def test_planning_and_simulating_need_no_torch():
    loaded = run(
        "import conductor, sys; conductor.plan, conductor.simulate, conductor.timeline;"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    assert not {"torch", "gymnasium"} & set(loaded.split())


def test_import_takes_at_most_150_ms():
    code = "import time; t = time.perf_counter(); import conductor; print(time.perf_counter() - t)"
    assert min(float(run(code)) for _ in range(5)) <= 0.15


def test_every_name_is_listed_and_loads():
    assert set(conductor.__all__) <= set(dir(conductor))
    for name in conductor.__all__:
        assert getattr(conductor, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = conductor.nothing
