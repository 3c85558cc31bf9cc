"""Training configurations, by name."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How a policy is trained.

    Attributes:
        name: of the configuration.
        learning_rate: of Adam.
        clip: of PPO's probability ratio.
        discount: per decision of the whole pipeline.
        update_epochs: passes over the decisions of an update.
        batch_size: decisions in a gradient step.
        cloning_rollouts: episodes of the expert to clone.
        cloning_epochs: passes over their decisions.
        value_coefficient: weight of the critic's loss.
        entropy_coefficient: weight of the entropy bonus at the start.
        final_entropy_coefficient: the same at the last episode (linear in between).
        label_smoothing: of the cloning loss, over the choices that were open.
        episodes_per_update: episodes between two updates.
        episodes_per_draw: of these, how many share one draw of durations; above 1 their mean is a baseline
            beside the critic.
        hidden: width of both hidden layers.
        validation_draws: fixed draws of a task on which policies are compared; the best is kept.
        validation_interval: updates from one comparison to the next.
    """

    name: str
    learning_rate: float = 3e-4
    clip: float = 0.2
    discount: float = 0.99
    update_epochs: int = 10
    batch_size: int = 64
    cloning_rollouts: int = 64
    cloning_epochs: int = 10
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    final_entropy_coefficient: float = 0.01
    label_smoothing: float = 0.0
    episodes_per_update: int = 25
    episodes_per_draw: int = 1
    hidden: int = 128
    validation_draws: int = 1000
    validation_interval: int = 1


PAPER = TrainingConfig(name="paper")
"""The paper's published settings; nothing changes them."""

ROBUST = TrainingConfig(
    name="robust",
    learning_rate=1e-3,
    discount=1.0,
    update_epochs=4,
    batch_size=1024,
    cloning_rollouts=128,
    entropy_coefficient=0.1,
    final_entropy_coefficient=0.0,
    label_smoothing=0.1,
    episodes_per_update=256,
    episodes_per_draw=4,
    validation_draws=512,
)
"""What the paper's settings do not allow: room to leave the plan, and many more episodes."""

GENERALIST = replace(
    ROBUST,
    name="generalist",
    cloning_rollouts=512,
    batch_size=4096,
    episodes_per_update=256,
    validation_draws=32,
    validation_interval=8,
)
"""One policy for pipelines of all sorts."""

CONFIGS: dict[str, TrainingConfig] = {config.name: config for config in (PAPER, ROBUST, GENERALIST)}
