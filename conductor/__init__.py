"""Conductor plans and runs pipeline-parallel training.

The names below are loaded when first used, so that `import conductor` is quick and light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conductor.planning.plan import plan
    from conductor.problem.presets import load_preset
    from conductor.problem.spec import PipelineSpec
    from conductor.problem.spec_file import load_spec
    from conductor.simulator.simulate import simulate, timeline

__version__ = "0.1.0"
__all__ = ["PipelineSpec", "load_preset", "load_spec", "plan", "simulate", "timeline"]

_HOMES = {
    "PipelineSpec": "conductor.problem.spec",
    "load_preset": "conductor.problem.presets",
    "load_spec": "conductor.problem.spec_file",
    "plan": "conductor.planning.plan",
    "simulate": "conductor.simulator.simulate",
    "timeline": "conductor.simulator.simulate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'conductor' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
