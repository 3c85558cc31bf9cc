"""`python -m conductor.rl.two_tier`: trains the lending network that comes with the package."""

from __future__ import annotations

import argparse
import time

import numpy as np

from conductor.rl.two_tier.network import SHIPPED
from conductor.rl.two_tier.training import EvolutionConfig, evolve, random_lesson


def main() -> None:
    """Trains on random pipelines, validates on others, writes the best."""
    parser = argparse.ArgumentParser(prog="python -m conductor.rl.two_tier", description=__doc__)
    parser.add_argument("--out", default=str(SHIPPED), help="the file to write (.npz)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pipelines", type=int, default=32, help="random pipelines to train on")
    parser.add_argument("--generations", type=int, default=EvolutionConfig().generations)
    parser.add_argument("--hidden", type=int, default=EvolutionConfig().hidden)
    given = parser.parse_args()
    start = time.perf_counter()
    rng = np.random.default_rng((given.seed, 3))
    lessons = [random_lesson(rng) for _ in range(given.pipelines)]
    validation = [random_lesson(np.random.default_rng((4, k))) for k in range(48)]

    def report(generation: int, ratio: float) -> None:
        seconds = time.perf_counter() - start
        print(
            f"{generation:5d}  {ratio:.4f} of the planner's makespan  {seconds:.0f} s", flush=True
        )

    config = EvolutionConfig(generations=given.generations, hidden=given.hidden)
    network = evolve(lessons, validation, config, given.seed, report)
    network.save(
        given.out, seed=given.seed, pipelines=given.pipelines, generations=given.generations,
        command=f"python -m conductor.rl.two_tier --seed {given.seed}",
    )  # fmt: skip
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
