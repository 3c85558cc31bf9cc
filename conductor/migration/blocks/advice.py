"""Whether, what and how much migration pays on a model and its hardware, and why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from conductor.errors import DoesNotFitError, InvalidSpecError
from conductor.ir.schedule import Schedule
from conductor.migration.blocks.costs import Piece
from conductor.migration.blocks.execution import BlockModel
from conductor.migration.blocks.hardware import Link
from conductor.migration.blocks.plan import BlockPlan, plan_blocks
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build

LEAST_GAIN = 0.01
"""A step must become shorter by this share for migration to pay."""
SCHEDULES = ("zb-1p", "zb-v")


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceAdvice:
    """What one lender of the same speed, on a free link, can do for one block.

    Attributes:
        piece: what moves.
        kind: in which action.
        link: over which link.
        parts: the best number of parts to move; 0 is none.
        of_parts: all of them.
        alone_ms: the block without help.
        helped_ms: the block with it.
        bytes: on the link for one block.
        messages: for one block.
        lender_bytes: memory at the lender for a whole stage: weights and gradients, and one block's
            messages.
        why_not: where it does not pay.
    """

    piece: str
    kind: str
    link: str
    parts: int
    of_parts: int
    alone_ms: float
    helped_ms: float
    bytes: float
    messages: int
    lender_bytes: float
    why_not: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAdvice:
    """What migration does for a whole step.

    Attributes:
        schedule: the order underneath.
        microbatches: in the step.
        without_ms: makespan without migration.
        with_ms: makespan with it.
        gain: share of the time saved.
        helps: blocks helped.
        bytes: of helps in a step.
        weight_bytes: of weights and gradients, once a step.
        lender_bytes: most weights and gradients that a rank holds of others' stages.
        moved_share: of the work.
    """

    schedule: str
    microbatches: int
    without_ms: float
    with_ms: float
    gain: float
    helps: float
    bytes: float
    weight_bytes: float
    lender_bytes: float
    moved_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Whether migration pays, piece by piece and over the step.

    Attributes:
        pays: whether some step becomes shorter by `LEAST_GAIN`.
        reason: one sentence.
        pieces: every kind of action, piece and link.
        steps: one for each schedule.
    """

    pays: bool
    reason: str
    pieces: tuple[PieceAdvice, ...]
    steps: tuple[StepAdvice, ...]


def on_hardware(spec: PipelineSpec, model: BlockModel) -> PipelineSpec:
    """The spec with the times that its model takes on the hardware.

    F takes its operations at the speed that training reaches; I and W keep their ratio to F. A transfer
    takes one activation over the link between the ranks, and the latency.

    Raises:
        InvalidSpecError: the spec already has several stages a rank.
    """
    if not spec.is_rank_level:
        raise InvalidSpecError("migration by blocks needs a spec with one stage a rank")
    forward = spec.per_stage("forward_ms")
    if not forward.mean() > 0.0:
        raise InvalidSpecError("migration by blocks needs forward_ms above 0")
    shape, hardware = model.shape, model.hardware
    layers = shape.layers / spec.num_stages
    wanted = sum(shape.forward_flops().values()) * layers / (hardware.tflops * 1e9)
    scale = wanted / forward.mean()
    nodes = model.topology.nodes
    links = [
        hardware.near if near == far else hardware.far
        for near, far in zip(nodes[:-1], nodes[1:], strict=True)
    ]
    return spec.with_(
        transfer_ms=tuple(link.ms(shape.activation_bytes) + link.latency_ms for link in links),
        **{
            name: tuple((spec.per_stage(name) * scale).tolist())
            for name in ("forward_ms", "backward_input_ms", "backward_weight_ms")
        },
    )


def advise(
    spec: PipelineSpec,
    model: BlockModel,
    schedules: tuple[str, ...] = SCHEDULES,
    *,
    on_plan: Callable[[BlockPlan], None] | None = None,
) -> Advice:
    """Plans migration on some schedules and says whether it pays.

    Args:
        spec: with the times on the model's hardware (`on_hardware`).
        model: what moves and what it costs.
        schedules: names of orders; those that do not fit the spec are left out.
        on_plan: is given the plan of each.

    Raises:
        DoesNotFitError: no schedule fits.
    """
    advice = tuple(_pieces(spec, model))
    steps = []
    for name in schedules:
        try:
            schedule = build(name, spec)
        except DoesNotFitError as error:
            refusal = error
            continue
        plan = plan_blocks(spec, model, [schedule])
        steps.append(_step(schedule, plan))
        if on_plan is not None:
            on_plan(plan)
    if not steps:
        raise refusal
    best = max(steps, key=lambda step: step.gain)
    paying = sorted({entry.piece for entry in advice if entry.why_not is None})
    if best.gain >= LEAST_GAIN:
        reason = (
            f"yes: {100 * best.gain:.1f} % of a step on {best.schedule}, with"
            f" {best.bytes / 1e9:.3g} GB of messages and {best.weight_bytes / 1e9:.3g} GB of weights"
        )
    elif paying:
        reason = (
            f"no: single blocks gain ({', '.join(paying)}), but what they take on the links and of the"
            f" lenders' time leaves {100 * best.gain:.1f} % of a step"
        )
    else:
        reason = f"no: {_why_none(advice)}"
    return Advice(pays=best.gain >= LEAST_GAIN, reason=reason, pieces=advice, steps=tuple(steps))


def _why_none(pieces: tuple[PieceAdvice, ...]) -> str:
    """The reason of the piece that comes nearest to paying: the longest block."""
    nearest = max(pieces, key=lambda entry: entry.alone_ms, default=None)
    return "nothing may move" if nearest is None else f"{nearest.piece}: {nearest.why_not}"


def _pieces(spec: PipelineSpec, model: BlockModel) -> Iterator[PieceAdvice]:
    nodes = model.topology.nodes
    links: list[Link] = []
    if len(set(nodes)) < len(nodes):
        links.append(model.hardware.near)
    if len(set(nodes)) > 1 and model.hardware.far not in links:
        links.append(model.hardware.far)
    layers = model.layers_of(spec.num_stages)
    for kind in (Kind.F, Kind.I, Kind.W):
        stage_ms = float(spec.duration_ms[kind].mean())
        for piece in model.stage_pieces(kind, stage_ms, spec.num_stages):
            for link in links:
                yield _piece(piece, link, layers)


def _piece(piece: Piece, link: Link, layers: int) -> PieceAdvice:
    parts = piece.best_parts(link)
    helped = piece.block_ms(parts, link)
    why_not = None
    if helped > (1.0 - LEAST_GAIN) * piece.alone_ms:
        parts, helped = 0, piece.alone_ms
        sent = link.ms(piece.in_bytes + piece.back_bytes) + 2.0 * link.latency_ms
        each = link.ms(piece.in_part_bytes + piece.back_part_bytes)
        why_not = (
            f"{link.name} takes {sent:.3g} ms there and back and {each:.2g} ms a part, the part saves"
            f" {piece.movable_ms / piece.parts:.2g} ms of a block of {piece.alone_ms:.3g} ms"
        )
    held = (piece.weight_part_bytes + piece.gradient_part_bytes) * parts * layers
    return PieceAdvice(
        piece=piece.name,
        kind=piece.kind.name,
        link=link.name,
        parts=parts,
        of_parts=piece.parts,
        alone_ms=piece.alone_ms,
        helped_ms=helped,
        bytes=piece.round_trip_bytes(parts),
        messages=piece.messages if parts else 0,
        lender_bytes=held + piece.round_trip_bytes(parts),
        why_not=why_not,
    )


def _step(schedule: Schedule, plan: BlockPlan) -> StepAdvice:
    moves = plan.step.helps > 0
    return StepAdvice(
        schedule=schedule.name,
        microbatches=schedule.num_microbatches,
        without_ms=plan.without_ms,
        with_ms=plan.plan_ms,
        gain=1.0 - plan.plan_ms / plan.without_ms,
        helps=plan.step.helps,
        bytes=plan.step.bytes_moved,
        weight_bytes=plan.step.weight_bytes,
        lender_bytes=float(plan.prepared.held_bytes.max()) if moves else 0.0,
        moved_share=plan.step.moved_share,
    )
