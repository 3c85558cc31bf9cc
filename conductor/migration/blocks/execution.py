"""Execution of a schedule under the per-block model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from conductor.errors import InvalidSpecError
from conductor.ir.schedule import FloatArray, Int32Array, Schedule
from conductor.migration import kernels as simple
from conductor.migration.blocks import kernels
from conductor.migration.blocks.costs import PIECES, Piece, pieces
from conductor.migration.blocks.hardware import Hardware, Topology
from conductor.migration.blocks.shape import ModelShape
from conductor.migration.execution import (
    Execution,
    MigrationRules,
    Prepared,
    check_progress,
    prepare,
)
from conductor.migration.model import SimpleModel
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec

KINDS = (Kind.F, Kind.I, Kind.W)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockModel:
    """What moves under the per-block model.

    Attributes:
        shape: of the transformer.
        hardware: of a rank and its links.
        topology: which ranks are near.
        pieces: names of `PIECES` that may move.
        weight_budget_bytes: weights of other stages (and gradients) that a rank may hold.
    """

    shape: ModelShape
    hardware: Hardware
    topology: Topology
    pieces: tuple[str, ...] = PIECES
    weight_budget_bytes: float = 4e9

    def __post_init__(self) -> None:
        """Checks the budget against the memory of a rank.

        Raises:
            InvalidSpecError: the lender's share does not fit.
        """
        if self.weight_budget_bytes > self.hardware.memory_bytes:
            raise InvalidSpecError(
                f"a lender's share of {self.weight_budget_bytes / 1e9:g} GB does not fit the"
                f" {self.hardware.memory_bytes / 1e9:g} GB of {self.hardware.name}"
            )

    def layers_of(self, num_stages: int) -> int:
        """Layers of a stage; the first and the last stage may have one fewer, which is not told apart.

        Raises:
            InvalidSpecError: more stages than layers.
        """
        if num_stages > self.shape.layers + 2:
            raise InvalidSpecError(f"{self.shape.layers} layers do not fill {num_stages} stages")
        return max(1, round(self.shape.layers / num_stages))

    def stage_pieces(self, kind: Kind, stage_ms: float, num_stages: int) -> list[Piece]:
        """What can move of one layer of a stage whose action takes `stage_ms`."""
        layer_ms = stage_ms / self.layers_of(num_stages)
        return [p for p in pieces(self.shape, kind, layer_ms) if p.name in self.pieces]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedBlocks:
    """A schedule ready to run under the per-block model.

    Attributes:
        base: the same under the simple model's loop: program, streams, lenders' own times, rules.
        model: the per-block model.
        pieces: the arrays of the event loop; `held` says which weights are where.
    """

    base: Prepared
    model: BlockModel
    pieces: kernels.Pieces

    def with_rules(self, rules: MigrationRules) -> PreparedBlocks:
        """The same under other rules."""
        return replace(self, base=self.base.with_rules(rules))

    def holding(self, held: Int32Array) -> PreparedBlocks:
        """The same with other weights at the lenders, shape (pieces, ranks, stages)."""
        return replace(self, pieces=_with_jobs(self.base, self.pieces._replace(held=held)))

    @property
    def held_bytes(self) -> FloatArray:
        """Weights (and gradients) that each rank holds of other ranks' stages, shape (num_ranks,)."""
        each = self.pieces.weight_bytes + self.pieces.gradient_bytes
        size = each[:, None, None] * self.pieces.layers
        held: FloatArray = (self.pieces.held * size).sum(axis=(0, 2))
        return held


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockRun:
    """One step under the per-block model.

    Attributes:
        makespan_ms: end of the last action, or of the gradients on their way home.
        start_ms: shape (n,), program order.
        end_ms: shape (n,).
        helps: shape (helps, 7): action, lender, piece, parts, start and end of the lender's work, time
            saved.
        messages: shape (messages, 4): way out, way in (near ports of the ranks, then far ports), start,
            end.
        bytes_moved: bytes of all helps.
        weight_bytes: bytes of weights and gradients, once a step.
        moved_ms: expected work that moved.
    """

    makespan_ms: float
    start_ms: FloatArray
    end_ms: FloatArray
    helps: FloatArray
    messages: FloatArray
    bytes_moved: float
    weight_bytes: float
    moved_ms: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockDraws:
    """Many steps under the per-block model.

    Attributes:
        makespan_ms: shape (draws,).
        helps: mean number of blocks helped.
        bytes_moved: mean bytes of helps in a step.
        weight_bytes: mean bytes of weights and gradients in a step.
        moved_share: mean share of the expected work that moved.
        saved_ms: shape (pieces, ranks, stages): time that a lender saved a stage, over all draws.
        most_parts: int32, same shape: the most parts of one block.
    """

    makespan_ms: FloatArray
    helps: float
    bytes_moved: float
    weight_bytes: float
    moved_share: float
    saved_ms: FloatArray
    most_parts: Int32Array


def prepare_blocks(
    spec: PipelineSpec,
    schedule: Schedule,
    model: BlockModel,
    *,
    rules: MigrationRules | None = None,
    execution: Execution = "static",
) -> PreparedBlocks:
    """Encodes a schedule for execution under the per-block model; nobody holds weights yet.

    Raises:
        InvalidSpecError: the topology is of other ranks than the spec.
    """
    if len(model.topology.nodes) != spec.num_ranks:
        raise InvalidSpecError(
            f"the topology has {len(model.topology.nodes)} ranks, the spec {spec.num_ranks}"
        )
    movable = SimpleModel(movable=1.0, movable_weight=1.0)
    base = prepare(spec, schedule, model=movable, rules=rules, execution=execution)
    base.costs.movable[base.costs.kinds == Kind.B] = 0.0
    return PreparedBlocks(base=base, model=model, pieces=_pieces(base, model))


def run(prepared: PreparedBlocks, durations_ms: npt.ArrayLike | None = None) -> BlockRun:
    """One step, with everything that happened.

    Raises:
        DeadlockError: ranks wait for each other for ever.
    """
    base = prepared.base
    durations, factors = base.realise(durations_ms)
    n = base.program.num_actions
    state = simple.make_state(n, 2 * base.program.num_ranks, len(base.layout.stream_offsets) - 1)
    log = simple.make_log(n)
    layers = prepared.pieces.layers
    chunks = int((prepared.pieces.held * layers).sum())
    rows = 8 * simple.MAX_LENDERS * n * int(layers.max()) + chunks
    wires = kernels.make_wires(prepared.pieces, rows)
    makespan = kernels.run(
        base.layout, base.costs, base.rules, prepared.pieces, wires, state, log,
        np.zeros((simple.MAX_LENDERS, 2), np.int32), durations[0], factors[0],
    )  # fmt: skip
    check_progress(base, np.array([makespan]))
    return BlockRun(
        makespan_ms=float(makespan),
        start_ms=log.start_ms,
        end_ms=log.end_ms,
        helps=wires.help_row[: int(wires.totals[0])],
        messages=wires.message[: int(wires.num_messages[0])],
        bytes_moved=float(wires.totals[1]),
        weight_bytes=float(wires.totals[2]),
        moved_ms=float(wires.totals[3]),
    )


def run_draws(prepared: PreparedBlocks, durations_ms: npt.ArrayLike | None = None) -> BlockDraws:
    """Many steps, one for each row of realised durations.

    Raises:
        DeadlockError: ranks wait for each other for ever.
    """
    base = prepared.base
    durations, factors = base.realise(durations_ms)
    totals = np.zeros((len(durations), 4))
    used = np.zeros(prepared.pieces.held.shape)
    most = np.zeros(prepared.pieces.held.shape, np.int32)
    makespans = kernels.run_draws(
        base.layout, base.costs, base.rules, prepared.pieces, durations, factors, totals, used, most
    )
    check_progress(base, makespans)
    mean = totals.mean(axis=0)
    return BlockDraws(
        makespan_ms=makespans,
        helps=float(mean[0]),
        bytes_moved=float(mean[1]),
        weight_bytes=float(mean[2]),
        moved_share=float(mean[3] / base.program.duration_ms.sum()),
        saved_ms=used,
        most_parts=most,
    )


def latest_block_starts(prepared: PreparedBlocks) -> FloatArray:
    """When each action must start, shape (n,), lest the makespan of the expected step grows.

    The time that each action takes, with its helps, is kept.
    """
    base, step = prepared.base, run(prepared)
    took = step.end_ms - step.start_ms - base.layout.send_ms
    log = simple.make_log(base.program.num_actions)
    by_start = np.argsort(-step.start_ms, kind="stable")
    latest: FloatArray = simple.latest_starts(
        base.layout._replace(duration_ms=took), base.costs, log, step.makespan_ms, by_start
    )
    return latest


def _pieces(base: Prepared, model: BlockModel) -> kernels.Pieces:
    """The model's costs as arrays; shares are the same for every stage."""
    num_ranks, num_stages = base.spec.num_ranks, base.spec.num_stages
    share = np.zeros((len(KINDS), len(PIECES), 3))
    bytes_ = np.zeros((len(KINDS), len(PIECES), 5))
    parts = np.zeros(len(PIECES), np.int32)
    weights, gradients = np.zeros(len(PIECES)), np.zeros(len(PIECES))
    for kind in KINDS:
        for piece in pieces(model.shape, kind, 1.0):
            index = PIECES.index(piece.name)
            share[kind, index] = (piece.before_ms, piece.movable_ms, piece.after_ms)
            bytes_[kind, index] = (
                piece.in_bytes, piece.in_part_bytes, piece.back_bytes, piece.back_part_bytes,
                piece.behind_part_bytes,
            )  # fmt: skip
            parts[index] = piece.parts if piece.name in model.pieces else 0
            weights[index], gradients[index] = piece.weight_part_bytes, piece.gradient_part_bytes
    held = np.zeros((len(PIECES), num_ranks, num_stages), np.int32)
    if "heads" in model.pieces:
        held[PIECES.index("heads")] = parts[PIECES.index("heads")]
    links = (model.hardware.near, model.hardware.far)
    empty = kernels.Pieces(
        layers=np.full(num_stages, model.layers_of(num_stages), np.int32),
        share=share,
        bytes_=bytes_,
        parts=parts,
        held=held,
        weight_bytes=weights,
        gradient_bytes=gradients,
        jobs=np.zeros((0, 3), np.int32),
        job_offsets=np.zeros(num_ranks + 1, np.int64),
        ms_per_byte=np.array([link.ms(1.0) for link in links]),
        latency_ms=np.array([link.latency_ms for link in links]),
        nodes=np.array(model.topology.nodes, np.int32),
        ports=np.array(model.topology.ports, np.int32),
    )
    return _with_jobs(base, empty)


def _with_jobs(base: Prepared, pieces: kernels.Pieces) -> kernels.Pieces:
    """The order in which each rank sends weights: near lenders first."""
    owners = np.asarray(base.schedule.stage_ranks)
    needed = pieces.held * (pieces.weight_bytes > 0.0)[:, None, None]
    jobs = []
    for piece, lender, stage in np.argwhere(needed):
        owner = owners[stage]
        if owner != lender:
            far = pieces.nodes[owner] != pieces.nodes[lender]
            jobs.append((owner, far, abs(owner - lender), piece, lender, stage))
    jobs.sort()
    table = np.array([job[3:] for job in jobs], np.int32).reshape(len(jobs), 3)
    counts = np.bincount([job[0] for job in jobs], minlength=base.spec.num_ranks)
    return pieces._replace(
        jobs=table, job_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    )
