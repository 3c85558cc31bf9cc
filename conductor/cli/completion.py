"""What shells complete: names of presets, schedules and scenarios.

The names stand here once more because a shell asks at every press of Tab, and the registries load a
compiler. A test holds them equal.
"""

from __future__ import annotations

PRESETS = (
    "paper", "gpt-like", "gpt-1.5b-p8-m24", "gpt-1.5b-p8-m32", "gpt-1.5b-p8-m64", "gpt-6.2b-p8-m24",
    "gpt-6.2b-p8-m32", "gpt-6.2b-p8-m64", "gpt-14.6b-p16-m48", "gpt-14.6b-p16-m64",
    "gpt-14.6b-p16-m128", "gpt-28.3b-p32-m96", "gpt-28.3b-p32-m128", "gpt-28.3b-p32-m256",
    "gpt-6.2b-p16-m48-v", "gpt-14.6b-p24-m72-v", "gpt-28.3b-p32-m96-v",
)  # fmt: skip
SCHEDULES = (
    "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "grouped-interleaved", "zb-1p", "zb-2p", "zb",
    "greedy", "zb-h1-light", "zb-v", "zb-v-2p", "zb-v-any", "zb-v-handmade", "v1f1b", "v-half",
    "v-min", "v-half-cost", "v-min-cost", "dualpipe-v", "seq1f1b", "rl",
)  # fmt: skip
SCENARIOS = (
    "paper-0", "paper-10", "paper-20", "paper-30", "uniform-tight", "uniform-ample",
    "few-microbatches", "slow-rank", "heavy-last-stage", "markov-stragglers", "variable-length",
    "link-delay", "traced-slow-worker", "traced-variable-length",
)  # fmt: skip
HARDWARE = tuple(
    f"{accelerator}-{link}"
    for accelerator in ("a100", "h100", "h200")
    for link in ("nvlink", "pcie", "infiniband")
)


def presets(incomplete: str) -> list[str]:
    """Names of presets that begin so."""
    return [name for name in PRESETS if name.startswith(incomplete)]


def schedules(incomplete: str) -> list[str]:
    """Names of schedules that begin so."""
    return [name for name in SCHEDULES if name.startswith(incomplete)]


def scenarios(incomplete: str) -> list[str]:
    """Names of scenarios that begin so."""
    return [name for name in SCENARIOS if name.startswith(incomplete)]


def hardware(incomplete: str) -> list[str]:
    """Names of hardware that begin so."""
    return [name for name in HARDWARE if name.startswith(incomplete)]
