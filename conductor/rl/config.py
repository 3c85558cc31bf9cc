"""Training configurations, by name."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How a policy is trained.

    Attributes:
        name: of the configuration.
        learning_rate: of Adam, at the start of PPO and all through the cloning.
        final_learning_rate: at the last episode (linear in between); None keeps it.
        gradient_norm: longer gradients of PPO are shortened to this; None shortens none.
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
        compared: about so many decisions of an episode are learned from, by what each choice leads to under
            the same durations; 0: all decisions, by what the episode came to.
        plan_evaluations: orders that the search of the given plan tries, for the mean over draws; 0: the
            plan is the best published one by expected times.
        may_wait: whether the policy may leave possible actions for later. False only to see what that is worth,
            as
        sees_plan: whether it knows what the plan does next, and when.
        hidden: width of both hidden layers.
        validation_draws: fixed draws of a task on which policies are compared; the best is kept.
        validation_interval: updates from one comparison to the next.
    """

    name: str
    learning_rate: float = 3e-4
    final_learning_rate: float | None = None
    gradient_norm: float | None = None
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
    compared: float = 0.0
    plan_evaluations: int = 0
    may_wait: bool = True
    sees_plan: bool = True
    hidden: int = 128
    validation_draws: int = 1000
    validation_interval: int = 1


PAPER = TrainingConfig(name="paper")
"""The paper's published settings; nothing changes them."""

ROBUST = TrainingConfig(
    name="robust",
    learning_rate=2e-3,
    final_learning_rate=0.0,
    gradient_norm=0.5,
    discount=1.0,
    update_epochs=4,
    batch_size=512,
    cloning_rollouts=128,
    entropy_coefficient=0.05,
    final_entropy_coefficient=0.0,
    label_smoothing=0.1,
    episodes_per_update=256,
    compared=20.0,
    plan_evaluations=100_000,
    validation_draws=512,
    validation_interval=4,
)
"""What the paper's settings do not allow: room to leave the plan, and a clearer sight of what each choice is
worth."""

GENERALIST = replace(
    ROBUST,
    name="generalist",
    learning_rate=1e-3,
    cloning_rollouts=1024,
    label_smoothing=0.05,
    entropy_coefficient=0.03,
    batch_size=1024,
    episodes_per_update=256,
    compared=16.0,
    validation_draws=32,
    validation_interval=8,
)
"""One policy for pipelines of all sorts."""

CONFIGS: dict[str, TrainingConfig] = {config.name: config for config in (PAPER, ROBUST, GENERALIST)}
