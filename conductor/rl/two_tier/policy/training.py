"""Training of the policy of both tiers: PPO on what each choice leads to, from a clone on.

The network starts as the learned scheduler's policy, held to the plan, with a lending head that is the lending
network or, its last layer zeros, the planner's rule. Each update plays episodes on a few random pipelines; at
some decisions of either kind every choice is tried and played to the end under the same durations, and the
makespans, less their mean, are the advantages (as in `conductor.rl.ppo`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from conductor.ir.schedule import FloatArray
from conductor.rl.checkpoint import read_state, write_state
from conductor.rl.kernels import NUM_FEATURES
from conductor.rl.play import Weights
from conductor.rl.policy import ActorCritic, masked_log_probabilities
from conductor.rl.training import one_torch_thread
from conductor.rl.two_tier.network import LendingNetwork
from conductor.rl.two_tier.policy.comparison.kernels import compare
from conductor.rl.two_tier.policy.kernels import NUM_OPTION_FEATURES
from conductor.rl.two_tier.policy.network import TwoTierPolicy
from conductor.rl.two_tier.tier import Tier, run_draws
from conductor.rl.two_tier.training import PATIENCE, Lesson, lesson_draws, random_lesson

_FORMAT = "conductor-two-tier-training-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoTierConfig:
    """How the policy is trained.

    Attributes:
        updates: of the policy.
        lessons: pipelines in each.
        draws: of each pipeline.
        compared: about so many decisions of an episode are tried: of what is next, of lending.
        tries: options of a lending decision that are tried.
        stay: how firmly the order is held to the plan in training.
        learning_rate: of Adam, for what the learned scheduler brings; falls to zero.
        head_rate: the same for the lending head, which starts from nothing.
        clip: of PPO's probability ratio.
        epochs: passes over the decisions of an update.
        batch: decisions of each kind in a gradient step.
        entropy: coefficient of the entropy bonus; falls to zero.
        validate_every: updates from one look at the held-out pipelines to the next.
        pipelines: random pipelines to train on, the smaller half of those made.
        width: of the lending head.
        from_network: whether that starts as the package's lending network, not as the planner's rule.
    """

    updates: int = 30
    lessons: int = 8
    draws: int = 6
    compared: tuple[float, float] = (2.0, 6.0)
    tries: int = 5
    stay: float = 4.0
    learning_rate: float = 5e-5
    head_rate: float = 5e-4
    clip: float = 0.2
    epochs: int = 4
    batch: int = 256
    entropy: float = 0.003
    validate_every: int = 5
    pipelines: int = 24
    width: int = 16
    from_network: bool = True


class TwoTierNetwork(nn.Module):
    """The learned scheduler's network and the lending head.

    Attributes:
        core: both shared layers and the order head.
    """

    def __init__(self, policy: TwoTierPolicy) -> None:
        """Takes over a policy's weights."""
        super().__init__()
        hidden = len(policy.from_trunk)
        self.core = ActorCritic(state_dim=NUM_FEATURES, hidden=hidden)
        nothing = np.zeros((hidden, 1), np.float32), np.zeros((1, 1), np.float32)
        self.core.load_arrays(policy.weights + nothing)
        self.from_trunk = nn.Parameter(torch.from_numpy(policy.from_trunk.copy()))
        self.from_option = nn.Parameter(torch.from_numpy(policy.from_option.copy()))
        self.bias = nn.Parameter(torch.from_numpy(policy.bias.copy()))
        self.last = nn.Parameter(torch.from_numpy(policy.last.copy()))
        self.lean = policy.lean

    def lend(self, seen: Tensor, options: Tensor, leads: Tensor) -> Tensor:
        """Scores of options, shape (decisions, options); of nobody, whose features are zeros, its lead.

        Args:
            seen: the borrower's stage, shape (decisions, NUM_FEATURES).
            options: shape (decisions, options, NUM_OPTION_FEATURES).
            leads: scores without the network, shape (decisions, options).
        """
        context = self.core.shared_net(seen) @ self.from_trunk + self.bias
        inner = torch.relu(context.unsqueeze(1) + options @ self.from_option)
        somebody = options.ne(0.0).any(-1)
        return leads + (inner @ self.last) * somebody

    def policy(self, **meta: Any) -> TwoTierPolicy:
        """As arrays (copies)."""

        def array(one: Tensor) -> Any:
            return one.detach().numpy().copy()

        return TwoTierPolicy(
            weights=self.core.weights(), from_trunk=array(self.from_trunk),
            from_option=array(self.from_option), bias=array(self.bias), last=array(self.last),
            lean=self.lean, meta=meta,
        )  # fmt: skip


@dataclass(slots=True, kw_only=True, eq=False)
class TwoTierTraining:
    """A training under way: everything that a file of it holds.

    Attributes:
        config: the settings.
        seed: of everything.
        network: as it learns.
        optimizer: Adam.
        rng: of draws and samples.
        lessons: to train on, made from the seed.
        validation: lessons that serve no step.
        updates: so far.
        best: the best policy on the validation lessons.
        best_ratio: its mean makespan there over the planner's.
        history: (updates, that ratio).
    """

    config: TwoTierConfig
    seed: int
    network: TwoTierNetwork
    optimizer: torch.optim.Optimizer
    rng: np.random.Generator
    lessons: Sequence[Lesson]
    validation: Sequence[Lesson]
    updates: int = 0
    best: TwoTierPolicy
    best_ratio: float = np.inf
    history: list[tuple[int, float]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether all updates are made."""
        return bool(self.history) and self.updates >= self.config.updates


def new_two_tier_training(weights: Weights, config: TwoTierConfig, *, seed: int) -> TwoTierTraining:
    """A training that has not begun, from a learned scheduler's weights."""
    one_torch_thread()
    rng = np.random.default_rng((seed, 3))
    lessons = [random_lesson(rng, policy=True) for _ in range(2 * config.pipelines)]
    lessons = sorted(lessons, key=lambda one: one.prepared.program.num_actions)[: config.pipelines]
    validation = [random_lesson(np.random.default_rng((4, k)), policy=True) for k in range(12)]
    first = TwoTierPolicy.initial(
        weights, np.random.default_rng((seed, 1)), width=config.width,
        lending=LendingNetwork.load() if config.from_network else None,
    )  # fmt: skip
    network = TwoTierNetwork(first)
    return TwoTierTraining(
        config=config, seed=seed, network=network, rng=np.random.default_rng((seed, 2)),
        optimizer=_optimizer(network, config),
        lessons=lessons, validation=validation, best=first,
    )  # fmt: skip


def _optimizer(network: TwoTierNetwork, config: TwoTierConfig) -> torch.optim.Optimizer:
    head = [network.from_trunk, network.from_option, network.bias, network.last]
    groups = [
        {"params": list(network.core.parameters()), "lr": config.learning_rate},
        {"params": head, "lr": config.head_rate},
    ]
    return torch.optim.Adam(groups, eps=1e-5)


def train_two_tier(
    training: TwoTierTraining,
    report: Callable[[TwoTierTraining], None] = lambda _: None,
) -> None:
    """Trains to the end; `report` is called after every look at the held-out pipelines."""
    one_torch_thread()
    config = training.config
    if not training.history:
        _validate(training)
        report(training)
    while training.updates < config.updates:
        _update(training)
        training.updates += 1
        if training.updates % config.validate_every == 0 or training.updates == config.updates:
            _validate(training)
            report(training)


def mean_ratio(lessons: Sequence[Lesson], policy: TwoTierPolicy, stay: float) -> float:
    """Mean makespan over the planner's, over lessons with draws of their own."""
    ratios = []
    for one in lessons:
        drawn = lesson_draws(one, 16, np.random.default_rng(2))
        ratios.append(
            run_draws(one.prepared, _tier(one, policy, stay), drawn).makespan_ms.mean()
            / one.plan_ms
        )
    return float(np.mean(ratios))


def _tier(one: Lesson, policy: TwoTierPolicy, stay: float) -> Tier:
    return Tier(
        guesses=one.tier.guesses, policy=policy, orders=True, lends=True, stay=stay,
        patience=PATIENCE,
    )  # fmt: skip


def _validate(training: TwoTierTraining) -> None:
    policy = training.network.policy()
    ratio = mean_ratio(training.validation, policy, training.config.stay)
    training.history.append((training.updates, ratio))
    if ratio < training.best_ratio:
        training.best, training.best_ratio = policy, ratio


@dataclass(slots=True)
class _Seen:
    """Compared decisions of an update, of both kinds; outcomes are advantages."""

    orders: list[tuple[Tensor, ...]] = field(default_factory=list)
    lends: list[tuple[Tensor, ...]] = field(default_factory=list)


def _collect(training: TwoTierTraining) -> _Seen:
    config, rng, seen = training.config, training.rng, _Seen()
    policy = training.network.policy()
    chosen = rng.choice(
        len(training.lessons), min(config.lessons, len(training.lessons)), replace=False
    )
    for index in chosen:
        one = training.lessons[index]
        prepared = one.prepared
        tier = _tier(one, policy, config.stay)
        compiled = tier.compiled_policy(prepared)
        assert compiled is not None
        durations, factors = prepared.realise(
            one.variation.sample(prepared.program, config.draws, rng)
        )
        episodes, n = durations.shape
        stages = compiled.p.local_stages.shape[1]
        room = [int(2 * most) + 4 for most in config.compared]
        slots, tries = 3 * stages + 1, config.tries
        order_seen = np.zeros((episodes, room[0], stages, NUM_FEATURES), np.float32)
        order_choices = np.zeros((episodes, room[0]), np.int64)
        order_plan = np.zeros((episodes, room[0]), np.int64)
        order_outcomes = np.zeros((episodes, room[0], slots))
        lend_seen = np.zeros((episodes, room[1], NUM_FEATURES), np.float32)
        lend_options = np.zeros((episodes, room[1], tries, NUM_OPTION_FEATURES), np.float32)
        lend_leads = np.zeros((episodes, room[1], tries))
        lend_outcomes = np.zeros((episodes, room[1], tries))
        lend_counts = np.zeros((episodes, room[1]), np.int64)
        lengths = np.zeros((episodes, 2), np.int64)
        makespans = np.zeros(episodes)
        seeds = rng.integers(1, 2**62, episodes).astype(np.uint64)
        # Of an action's eight block boundaries few have lenders to choose from.
        shares = np.array([config.compared[0] / n, config.compared[1] / n])
        compare(
            prepared.layout, prepared.costs, prepared.rules, tier.mind(prepared), compiled, durations,
            factors, shares, seeds,
            order_seen, order_choices, order_plan, order_outcomes, lend_seen, lend_options, lend_leads,
            lend_outcomes, lend_counts, lengths, makespans,
        )  # fmt: skip
        used = np.arange(room[0]) < lengths[:, :1]
        _add_orders(
            seen, training.network, config.stay, order_seen[used], order_choices[used],
            order_plan[used], order_outcomes[used],
        )  # fmt: skip
        used = np.arange(room[1]) < lengths[:, 1:]
        _add_lends(
            seen, training.network, lend_seen[used], lend_options[used], lend_leads[used],
            lend_outcomes[used], lend_counts[used],
        )  # fmt: skip
    return seen


@torch.no_grad()
def _add_orders(
    seen: _Seen, network: TwoTierNetwork, stay: float, observed: Any, choices: Any, plan: Any,
    outcomes: Any,
) -> None:  # fmt: skip
    if not len(plan):
        return
    # Waiting is the last slot, whatever the number of stages.
    slots = outcomes.shape[1]
    leads = np.zeros(outcomes.shape, np.float32)
    leads[np.arange(len(plan)), plan] = stay
    rows = tuple(torch.from_numpy(np.ascontiguousarray(one)) for one in (observed, choices, leads))
    old = masked_log_probabilities(network.core.decide(rows[0])[0] + rows[2], rows[1])
    open_ = (choices[:, None] >> np.arange(slots)) & 1 == 1
    seen.orders.append((*rows, old, _advantages(old, outcomes, open_)))


@torch.no_grad()
def _add_lends(
    seen: _Seen, network: TwoTierNetwork, observed: Any, options: Any, leads: Any, outcomes: Any,
    counts: Any,
) -> None:  # fmt: skip
    if not len(counts):
        return
    open_ = np.arange(outcomes.shape[1]) < counts[:, None]
    leads = np.where(open_, leads, -np.inf).astype(np.float32)
    options = np.where(open_[..., None], options, 0.0).astype(np.float32)
    rows = tuple(torch.from_numpy(np.ascontiguousarray(one)) for one in (observed, options, leads))
    old = torch.log_softmax(network.lend(*rows), 1)
    seen.lends.append((*rows, old, _advantages(old, outcomes, open_)))


def _advantages(old: Tensor, outcomes: FloatArray, open_: Any) -> Tensor:
    """What each choice brings beyond the mean over the choices; of one scale over a pipeline."""
    worst = outcomes[np.isfinite(outcomes)].max()
    values = torch.from_numpy(np.where(open_, -np.minimum(outcomes, worst), 0.0))
    chances = old.exp().double()
    above = (values - (chances * values).sum(1, keepdim=True)).masked_fill(
        torch.from_numpy(~open_), 0.0
    )
    scale = (above.square().sum() / max(int(open_.sum()), 1)).sqrt() + 1e-9
    return (above / scale).float()


def _update(training: TwoTierTraining) -> None:
    config, network, optimizer = training.config, training.network, training.optimizer
    seen = _collect(training)
    left = 1.0 - training.updates / config.updates
    for group, rate in zip(
        optimizer.param_groups, (config.learning_rate, config.head_rate), strict=True
    ):
        group["lr"] = rate * left
    for _ in range(config.epochs):
        parts: list[tuple[str, tuple[Tensor, ...]]] = []
        for kind, groups in (("order", seen.orders), ("lend", seen.lends)):
            for width in sorted({group[3].shape[1] for group in groups}):
                joined = tuple(
                    torch.cat(one)
                    for one in zip(
                        *(group for group in groups if group[3].shape[1] == width), strict=True
                    )
                )
                order = torch.from_numpy(training.rng.permutation(len(joined[0])))
                for rows in order.tensor_split(max(1, round(len(order) / config.batch))):
                    parts.append((kind, tuple(one[rows] for one in joined)))
        for place in training.rng.permutation(len(parts)):
            kind, (first, second, leads, old, advantages) = parts[place]
            if kind == "order":
                scores = network.core.decide(first)[0] + leads
                logs = masked_log_probabilities(scores, second)
            else:
                logs = torch.log_softmax(network.lend(first, second, leads), 1)
            chances, were = logs.exp(), old.exp()
            clipped = chances.clamp((1.0 - config.clip) * were, (1.0 + config.clip) * were)
            gain = torch.min(chances * advantages, clipped * advantages).sum() / len(logs)
            entropy = -(chances * logs.masked_fill(logs.isinf(), 0.0)).sum() / len(logs)
            loss = -gain - config.entropy * left * entropy
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()


def save_two_tier_training(training: TwoTierTraining, path: str | Path) -> None:
    """Writes a training to a file, whole or not at all."""
    state = {
        "format": _FORMAT,
        "config": asdict(training.config),
        "seed": training.seed,
        "network": training.network.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "rng": training.rng.bit_generator.state,
        "updates": training.updates,
        "best": TwoTierNetwork(training.best).state_dict(),
        "best_ratio": training.best_ratio,
        "history": training.history,
    }
    write_state(state, path)


def load_two_tier_training(path: str | Path, weights: Weights) -> TwoTierTraining:
    """Reads a training from a file.

    Raises:
        FormatError: it isn't one, or cannot be read.
    """
    state = read_state(path, _FORMAT, what="a training of both tiers")
    config = TwoTierConfig(**{**state["config"], "compared": tuple(state["config"]["compared"])})
    training = new_two_tier_training(weights, config, seed=state["seed"])
    training.network.load_state_dict(state["best"])
    training.best = training.network.policy()
    training.network.load_state_dict(state["network"])
    training.optimizer.load_state_dict(state["optimizer"])
    training.rng.bit_generator.state = state["rng"]
    training.updates = state["updates"]
    training.best_ratio = state["best_ratio"]
    training.history = [(int(updates), float(ratio)) for updates, ratio in state["history"]]
    return training
