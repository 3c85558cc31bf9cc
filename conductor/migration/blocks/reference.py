"""A slow, obvious execution of the per-block model, float for float equal to the compiled one."""

from __future__ import annotations

import math

from conductor.ir.schedule import FloatArray
from conductor.migration.blocks.execution import PreparedBlocks
from conductor.migration.reference import Reference, split
from conductor.problem.kind import Kind

_BLOCKS = {
    Kind.F: (("heads", "projections"), ("mlp",)),
    Kind.I: (("mlp",), ("heads", "projections")),
    Kind.W: (("weights",),),
}
"""Of one layer, in order: what may move of each block."""
_PIECES = ("heads", "projections", "mlp", "weights")


class BlockReference(Reference):
    """One step of a prepared schedule under the per-block model.

    `makespan_ms`, `actions`, `rows` (of helps) and `messages` hold the outcome.
    """

    def __init__(self, prepared: PreparedBlocks, durations_ms: FloatArray) -> None:
        self.pieces = pieces = prepared.pieces
        num_ranks = prepared.base.program.num_ranks
        self.owner = list(prepared.base.schedule.stage_ranks)
        self.ways_out: dict[tuple[str, int], float] = {}
        self.ways_in: dict[tuple[str, int], float] = {}
        self.messages: list[tuple[float, float]] = []
        self.rows: list[tuple[int, int, int, int, float, float]] = []
        self.arrived: set[tuple[int, int, int]] = set()
        self.arrival: dict[tuple[int, int, int], float] = {}
        self.reserved = [-1] * num_ranks
        self.block_end = [0.0] * num_ranks
        self.after = [0.0] * num_ranks
        self.lent: list[tuple[int, int, int]] = [(-1, -1, -1)] * num_ranks
        self.most: dict[tuple[int, int], int] = {}
        self.chunks: list[list[tuple[int, int, int, bool]]] = [[] for _ in range(num_ranks)]
        self.chunk_ms = [math.inf] * num_ranks
        for rank in range(num_ranks):
            for job in range(pieces.job_offsets[rank], pieces.job_offsets[rank + 1]):
                piece, lender, stage = (int(value) for value in pieces.jobs[job])
                count = int(pieces.held[piece, lender, stage] * pieces.layers[stage])
                self.chunks[rank] += [
                    (piece, lender, stage, chunk == count - 1) for chunk in range(count)
                ]
        super().__init__(prepared.base, durations_ms)

    def _run(self) -> float:
        for rank in range(len(self.ranks)):
            self._send_chunk(rank, 0.0)
            self._next(rank, 0.0)
        while True:
            events = [(state.event_ms, rank) for rank, state in enumerate(self.ranks)]
            # At equal times the ranks come before their senders of weights.
            events += [(time, len(self.ranks) + rank) for rank, time in enumerate(self.chunk_ms)]
            now, who = min(events)
            if now == math.inf:
                break
            if who >= len(self.ranks):
                self._send_chunk(who - len(self.ranks), now)
            elif self.ranks[who].doing == "idle":
                self._begin(who, now)
            elif self.ranks[who].doing == "run":
                self._block(who, now)
                self._release(who, now)
            elif self.ranks[who].doing == "end":
                self._finish(who, now)
            else:
                self._finish_help(who, now)
        if any(action.status != "ended" for action in self.actions):
            return math.inf
        return self._gradients(max(action.end_ms for action in self.actions))

    def _link(self, rank: int, other: int) -> int:
        return 0 if self.pieces.nodes[rank] == self.pieces.nodes[other] else 1

    def _ways(self, source: int, target: int) -> tuple[tuple[str, int], tuple[str, int]]:
        if self._link(source, target) == 0:
            return ("near", source), ("near", target)
        ports = self.pieces.ports
        return ("far", int(ports[source])), ("far", int(ports[target]))

    def _free(self, source: int, target: int) -> float:
        out, into = self._ways(source, target)
        return max(self.ways_out.get(out, 0.0), self.ways_in.get(into, 0.0))

    def _carry(self, source: int, target: int, start_ms: float, ms: float) -> float:
        begin = max(start_ms, self._free(source, target))
        out, into = self._ways(source, target)
        self.ways_out[out] = self.ways_in[into] = begin + ms
        self.messages.append((begin, begin + ms))
        return begin + ms

    def _send_chunk(self, rank: int, now: float) -> None:
        self.chunk_ms[rank] = math.inf
        if self.chunks[rank]:
            piece, lender, stage, last = self.chunks[rank].pop(0)
            link = self._link(rank, lender)
            size = float(self.pieces.weight_bytes[piece])
            end = self._carry(rank, lender, now, size * float(self.pieces.ms_per_byte[link]))
            if last:
                ready = end + float(self.pieces.latency_ms[link])
                self.arrival[piece, lender, stage] = ready
            self.chunk_ms[rank] = end

    def _begin(self, rank: int, now: float) -> None:
        state = self.ranks[rank]
        i = state.action
        action = self.actions[i]
        self.streams[self.layout.stream_of[i]].pop(0)
        action.status, action.start_ms = "running", now
        state.memory += float(self.layout.allocated[i])
        state.block = 0
        whole, send = float(self.layout.duration_ms[i]), float(self.layout.send_ms[i])
        action.expected_end_ms = now + whole + send
        if self.costs.movable[i] > 0.0:
            self._block(rank, now)
        else:
            state.free_ms = action.expected_end_ms
            state.doing, state.event_ms = "end", now + self.durations[i] + send

    def _block(self, rank: int, now: float) -> None:
        """The next block of a rank's action: who helps, and when its own share ends."""
        state, pieces = self.ranks[rank], self.pieces
        i = state.action
        action = self.actions[i]
        kind, stage = Kind(int(self.costs.kinds[i])), int(self.costs.stages[i])
        factor = self.factors[i]
        slow = factor if state.block else 1.0
        layer = float(self.layout.duration_ms[i]) / int(pieces.layers[stage])
        order = _BLOCKS[kind]
        names = order[state.block % len(order)]
        candidates = [_PIECES.index(name) for name in names]
        before, movable, after = (float(x) for x in pieces.share[kind, candidates[0]])
        alone = layer * (before + movable + after)
        best, chosen, piece = alone * slow, list[tuple[int, int]](), candidates[0]
        if self.rules.most_parts[i] > 0:
            for candidate in candidates:
                time, lenders = self._choose(rank, candidate, now, layer, slow, best)
                if lenders:
                    best, chosen, piece = time, lenders, candidate
        before, movable, after = (float(x) for x in pieces.share[kind, piece])
        action.back_ms = 0.0
        action.local_end_ms = now + alone * factor
        self.after[rank] = 0.0
        parts = int(pieces.parts[piece])
        for lender, q in chosen:
            self._lend_block(
                rank,
                piece,
                lender,
                q,
                now + before * layer * factor,
                movable * layer / parts,
                now + best,
            )
        if chosen:
            given = sum(q for _, q in chosen)
            action.local_end_ms = (
                now + before * layer * factor + movable * layer * factor * (1.0 - given / parts)
            )
            self.after[rank] = after * layer * factor
        self.block_end[rank] = now + best
        done = (state.block + 1) * layer
        if kind is not Kind.W:
            half = alone if state.block % 2 == 0 else 0.0
            done = (state.block + 1) // 2 * layer + half
        rest = max(float(self.layout.duration_ms[i]) - done, 0.0)
        action.expected_end_ms = now + best + rest * slow + float(self.layout.send_ms[i])
        state.free_ms = action.expected_end_ms
        state.block += 1
        state.doing, state.event_ms = "run", math.inf
        if not chosen:
            self._finish_block(rank)

    def _choose(
        self, rank: int, piece: int, now: float, layer: float, slow: float, best: float
    ) -> tuple[float, list[tuple[int, int]]]:
        """The shortest block with lenders of one piece, and they; nobody if `best` is shorter."""
        i, pieces = self.ranks[rank].action, self.pieces
        kind = self.costs.kinds[i]
        parts = int(pieces.parts[piece])
        shares = [float(x) for x in pieces.share[kind, piece]]
        movable, after = shares[1] * layer * slow, shares[2] * layer * slow
        whole = shares[0] * layer * slow + movable
        if parts == 0 or movable <= 0.0:
            return best, []
        least = float(self.rules.least_gain[i]) * (whole + after)
        lines = self._lenders(rank, piece, now, layer, slow, whole - least)
        shortest, chosen, answer = whole, list[int](), list[tuple[int, int]]()
        while len(chosen) < min(self.rules.max_lenders, len(lines)):
            most_ms, added = shortest - least, -1
            for index in range(len(lines)):
                if index in chosen:
                    continue
                trial = [*chosen, index]
                time, given = split([lines[k][1:] for k in trial], whole, movable / parts, parts)
                if time <= most_ms and given[-1] and time + after < best:
                    shortest, added, best = time, index, time + after
                    answer = [(lines[k][0], q) for k, q in zip(trial, given, strict=True)]
            if added < 0:
                break
            chosen.append(added)
        return best, answer if chosen else []

    def _lenders(
        self, rank: int, piece: int, now: float, layer: float, slow: float, enough: float
    ) -> list[tuple[int, float, float, int]]:
        """Ranks that could help: rank, offset, time of a part, most parts."""
        i, pieces = self.ranks[rank].action, self.pieces
        kind, stage = int(self.costs.kinds[i]), int(self.costs.stages[i])
        late = now - float(self.rules.latest_start_ms[i])
        before = float(pieces.share[kind, piece, 0]) * layer * slow
        part = float(pieces.share[kind, piece, 1]) * layer / int(pieces.parts[piece])
        sizes = [float(size) for size in pieces.bytes_[kind, piece]]
        found: list[tuple[int, float, float, int]] = []
        for lender, state in enumerate(self.ranks):
            mine = self.reserved[lender] == rank
            held = int(pieces.held[piece, lender, stage])
            ready = self.arrival.get(
                (piece, lender, stage), math.inf if pieces.weight_bytes[piece] > 0.0 else 0.0
            )
            if lender == rank or state.doing != "idle" or len(found) == self.rules.max_candidates:
                continue
            if (self.reserved[lender] >= 0 and not mine) or held == 0 or ready > now:
                continue
            link = self._link(rank, lender)
            per_byte = float(pieces.ms_per_byte[link])
            wait = max(self._free(rank, lender) - (now + before), 0.0)
            offset = (
                before
                + wait
                + 2.0 * float(pieces.latency_ms[link])
                + (sizes[0] + sizes[2]) * per_byte
            )
            ratio = float(self.costs.lend_ms[kind, stage, lender]) / float(
                self.layout.duration_ms[i]
            )
            slope = part * ratio + (sizes[1] + sizes[3]) * per_byte
            if offset + slope > enough:
                continue
            if not mine and self._latest_return(lender, now, late) < now + enough:
                continue
            found.append((lender, offset, slope, held))
        return found

    def _lend_block(
        self, rank: int, piece: int, lender: int, q: int, ready: float, part: float, expected: float
    ) -> None:
        i, pieces = self.ranks[rank].action, self.pieces
        kind, stage = int(self.costs.kinds[i]), int(self.costs.stages[i])
        link = self._link(rank, lender)
        sizes = [float(size) for size in pieces.bytes_[kind, piece]]
        twin = self.costs.where[kind, self.costs.stand_in[stage, lender], self.costs.units[i]]
        ratio = float(self.costs.lend_ms[kind, stage, lender]) / float(self.layout.duration_ms[i])
        ms = (sizes[0] + sizes[1] * q) * float(pieces.ms_per_byte[link])
        start = float(pieces.latency_ms[link]) + self._carry(rank, lender, ready, ms)
        end = start + part * q * ratio * self.factors[twin if twin >= 0 else i]
        self.rows.append((i, lender, piece, q, start, end))
        self.most[lender, stage] = max(
            self.most.get((lender, stage), 0), q if _PIECES[piece] == "weights" else 0
        )
        self.reserved[lender] = -1
        self.lent[lender] = (i, piece, q)
        self.actions[i].outstanding += 1
        state = self.ranks[lender]
        state.free_ms, state.doing, state.event_ms = expected, "help", end

    def _finish_block(self, rank: int) -> None:
        state = self.ranks[rank]
        i = state.action
        action = self.actions[i]
        end = max(action.local_end_ms, action.back_ms) + self.after[rank]
        kind, stage = Kind(int(self.costs.kinds[i])), int(self.costs.stages[i])
        if state.block == len(_BLOCKS[kind]) * int(self.pieces.layers[stage]):
            state.doing, state.event_ms = "end", end + float(self.layout.send_ms[i])
        else:
            state.doing, state.event_ms = "run", end

    def _finish_help(self, lender: int, now: float) -> None:
        i, piece, q = self.lent[lender]
        rank = int(self.layout.ranks[i])
        link = self._link(rank, lender)
        per_byte = float(self.pieces.ms_per_byte[link])
        sizes = [float(size) for size in self.pieces.bytes_[int(self.costs.kinds[i]), piece]]
        back, size = now, sizes[2] + sizes[3] * q
        if size > 0.0:
            back = self._carry(lender, rank, now, size * per_byte)
            back += float(self.pieces.latency_ms[link])
        if sizes[4] * q > 0.0:
            self._carry(lender, rank, now, sizes[4] * q * per_byte)
        action = self.actions[i]
        action.back_ms = max(action.back_ms, back)
        action.outstanding -= 1
        if action.outstanding == 0:
            self._finish_block(rank)
        self._turn(lender, now)

    def _turn(self, rank: int, now: float) -> None:
        """A rank that has come free waits for a late rank's next block, or goes on."""
        state, rules = self.ranks[rank], self.rules
        state.free_ms = now
        self.reserved[rank] = -1
        self._next(rank, now)
        if state.event_ms != now or not rules.delay_share > 0.0:
            return
        late = now - float(rules.latest_start_ms[state.action])
        best, whom = 0.0, -1
        for other, running in enumerate(self.ranks):
            i = running.action
            if other == rank or running.doing != "run" or rules.most_parts[i] == 0:
                continue
            whole = float(self.layout.duration_ms[i])
            planned = float(rules.latest_start_ms[i]) + whole + float(self.layout.send_ms[i])
            spare = rules.delay_share * (self.actions[i].expected_end_ms - planned - late)
            layers = int(self.pieces.layers[self.costs.stages[i]])
            spare -= max(self.block_end[other] - now, 0.0) + whole / (2.0 * layers)
            if spare > best:
                best, whom = spare, other
        if whom >= 0 and self.reserved.count(whom) < rules.max_lenders:
            self.reserved[rank] = whom
            state.event_ms = math.inf

    def _release(self, rank: int, now: float) -> None:
        for lender in range(len(self.ranks)):
            if self.reserved[lender] == rank:
                self.reserved[lender] = -1
                self._next(lender, now)

    def _finish(self, rank: int, now: float) -> None:
        i = self.ranks[rank].action
        self.actions[i].status, self.actions[i].end_ms = "ended", now
        self.ranks[rank].memory -= float(self.layout.freed[i])
        for target, lag in zip(
            self.layout.outputs[i].tolist(), self.layout.output_lag_ms[i].tolist(), strict=True
        ):
            if target < 0:
                continue
            other = int(self.layout.ranks[target])
            arrival = self._carry(rank, other, now, lag) if lag > 0.0 else now
            action = self.actions[target]
            action.missing -= 1
            action.arrival_ms = max(action.arrival_ms, arrival)
            waits = self.ranks[other].doing == "idle" and self.reserved[other] < 0
            if other != rank and action.missing == 0 and waits:
                self._next(other, now)
        self._release(rank, now)
        self._turn(rank, now)

    def _gradients(self, makespan: float) -> float:
        last = makespan
        size = float(self.pieces.gradient_bytes[_PIECES.index("weights")])
        for stage, owner in enumerate(self.owner):
            for lender in range(len(self.ranks)):
                parts = self.most.get((lender, stage), 0)
                if parts:
                    link = self._link(lender, owner)
                    total = size * parts * int(self.pieces.layers[stage])
                    ms = total * float(self.pieces.ms_per_byte[link])
                    end = self._carry(lender, owner, makespan, ms)
                    last = max(last, end + float(self.pieces.latency_ms[link]))
        return last
