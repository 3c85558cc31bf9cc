"""The learned tier slowly and obviously: the planner's slow execution, with guesses, prices and patience."""

import math

from conductor.migration.reference import Reference, split


def squashed(x):
    return math.copysign(math.log1p(min(abs(x), 100.0)), x)


class LearnedReference(Reference):
    def __init__(self, prepared, tier, durations_ms):
        self.mind = tier.mind(prepared)
        num_ranks = prepared.program.num_ranks
        self.told = {}  # micro-batch -> realised over expected of its ended actions, less 1, in order
        self.latest = [0.0] * num_ranks
        self.smooth = [0.0] * num_ranks
        self.ended = 0
        self.hope = [math.inf] * num_ranks
        self.work = {}  # (action, lender) -> guessed time of a part there
        super().__init__(prepared, durations_ms)

    def _guess(self, weights, i, rank, twin=-1, seen=0.0):
        if not self.mind.guesses:
            return 1.0
        ratios = self.told.get(int(self.costs.units[i]), [])
        excess, count = float(sum(ratios)), len(ratios)
        own = known = 0.0
        if twin >= 0 and self.actions[twin].status == "ended":
            own, known = self.factors[twin] - 1.0, 1.0
            excess, count = excess - own, count - 1
        if seen != 0.0:
            excess, count = excess + seen, count + 1
        mean = excess / max(count, 1)
        clues = [
            1.0, mean, mean / max(count, 1), float(count > 0), self.latest[rank], self.smooth[rank],
            own, known,
        ]  # fmt: skip
        guess = 0.0
        for weight, clue in zip(weights.tolist(), clues, strict=True):
            guess += weight * clue
        return min(max(guess, 0.25), 8.0)

    def _finish(self, rank, now):
        i = self.ranks[rank].action
        self.ended += 1
        if self.layout.duration_ms[i]:
            ratios = self.told.setdefault(int(self.costs.units[i]), [])
            usual = 1.0 + float(sum(ratios)) / max(len(ratios), 1)
            self.latest[rank] = self.factors[i] / max(usual, 0.05) - 1.0
            self.smooth[rank] += 0.3 * (self.latest[rank] - self.smooth[rank])
            ratios.append(self.factors[i] - 1.0)
        super()._finish(rank, now)

    def _expected_start(self, i, now):
        if not self.mind.guesses:
            return super()._expected_start(i, now)
        layout = self.layout
        ready = self.actions[i].arrival_ms
        for source, lag in zip(
            layout.inputs[i].tolist(), layout.input_lag_ms[i].tolist(), strict=True
        ):
            if source < 0 or self.actions[source].status == "ended":
                continue
            end = max(self.actions[source].expected_end_ms, now)
            if self.actions[source].status == "waiting":
                rank = int(layout.ranks[source])
                end = max(self.ranks[rank].free_ms, now)
                for k in range(self.streams[layout.stream_of[source]][0], source + 1):
                    if self.actions[k].status == "waiting":
                        guess = self._guess(self.mind.far, k, rank)
                        end += float(layout.duration_ms[k]) * guess + float(layout.send_ms[k])
            ready = max(ready, end + lag)
        return ready

    def _patient(self):
        return self.mind.patience >= 0.0 and not self.layout.static

    def _planned(self, rank):
        first, last = self.layout.rank_streams[rank : rank + 2]
        heads = [stream[0] for stream in self.streams[first:last] if stream]
        return min(heads, key=lambda i: self.layout.priority[i], default=None)

    def _return(self, rank, now, late_ms):
        heads = self._heads(rank)
        if self._patient():
            planned = self._planned(rank)
            heads = [] if planned is None else [planned]
        best, best_late = math.inf, -math.inf
        for i in heads:
            time = self._expected_start(i, now)
            late = time - float(self.rules.latest_start_ms[i])
            spare = late_ms - late
            time += self.rules.delay_share * spare if spare > 0.0 else 0.0
            if time < best:
                best, best_late = time, late
        return best, best_late

    def decide(self, rank, now, whole, saved, half, parts, inside):
        i = self.ranks[rank].action
        helps = len(self.actions[i].helps)
        room = self.rules.max_lenders - helps
        late = now - float(self.rules.latest_start_ms[i])
        if room <= 0 or parts <= 0 or saved <= 0.0 or -late > self.rules.patience_ms:
            return whole, []
        least = float(self.rules.least_gain[i]) * whole
        enough, latency = whole - least, self.costs.latency_ms
        kind, stage, unit = self.costs.kinds[i], self.costs.stages[i], self.costs.units[i]
        share = float(self.costs.movable[i]) / self.costs.parts
        able, lines, bonus = [], [], []
        for lender in sorted(range(len(self.ranks)), key=lambda r: (self.ranks[r].free_ms, r)):
            state = self.ranks[lender]
            free = max(state.free_ms - now, 0.0)
            running = state.action >= 0 and self.actions[state.action].status == "running"
            if lender == rank or state.pending is not None:
                continue
            if inside and running and self.actions[state.action].outstanding:
                continue
            if free + 2.0 * latency > enough or len(able) == self.rules.max_candidates:
                break
            twin = int(self.costs.where[kind, self.costs.stand_in[stage, lender], unit])
            seen = self.factors[i] - 1.0 if inside else 0.0
            guess = self._guess(self.mind.lent, i, lender, twin, seen)
            work = float(self.costs.lend_ms[kind, stage, lender]) * guess * share
            work += self.costs.part_ms
            begin = max(free, half)
            offset = begin + 2.0 * latency
            if offset + work + self.costs.part_ms > enough:
                continue
            back, lender_late = self._return(lender, now, late)
            span = back - now - begin - latency
            if span < work:
                continue
            able.append(lender)
            most = parts if span >= work * parts else int(span / work)
            lines.append((offset, work + self.costs.part_ms, most))
            self.work[i, lender] = work
            bonus.append(0.0)
            if self.mind.scores:
                time, (given,) = split(lines[-1:], whole, saved, parts)
                mean = self.mind.unit_ms
                busy = work * given
                features = [
                    squashed(late / mean), squashed((late - lender_late) / mean),
                    squashed(free / mean), squashed((span - busy) / mean), 1.0 - time / whole,
                    busy / mean, given / self.costs.parts, float(inside), whole / mean,
                    float(helps), self.ended / len(self.actions),
                    self.smooth[lender] - self.smooth[rank],
                ]  # fmt: skip
                bonus[-1] = mean * self._network(features)
        best, value = whole, whole
        choice, chosen = [], []
        while len(chosen) < min(room, len(able)):
            most_value, added = value - least, -1
            for index in range(len(able)):
                if index in chosen:
                    continue
                trial = [*chosen, index]
                time, given = split([lines[k] for k in trial], whole, saved, parts)
                worth = time - sum(bonus[k] for k in chosen) - bonus[index]
                if worth < value and worth <= most_value and given[-1]:
                    best, value, added = time, worth, index
                    choice = [(able[k], q) for k, q in zip(trial, given, strict=True)]
            if added < 0:
                break
            chosen.append(added)
        return best, choice

    def _network(self, features):
        total = self.mind.last_bias
        for j in range(len(self.mind.last)):
            value = float(self.mind.first_bias[j])
            for k, feature in enumerate(features):
                value += feature * float(self.mind.first[k, j])
            if value > 0.0:
                total += value * float(self.mind.last[j])
        return total

    def _free_after(self, entry, now):
        work = self.work[entry.action, entry.lender] * entry.parts
        return max(now, entry.expected_ready_ms) + self.costs.latency_ms + work

    def _next(self, rank, now):
        if not self._patient():
            super()._next(rank, now)
            return
        planned = self._planned(rank)
        until = again = math.inf
        if planned is not None and self._fits(rank, planned):
            until = max(self._expected_start(planned, now), now)
            self.hope[rank] = min(self.hope[rank], until)
        overdue = until < math.inf and now > self.hope[rank] + 3.0 * self.mind.unit_ms
        choices = []
        for i in self._heads(rank):
            time = max(now, self.actions[i].arrival_ms)
            if self.actions[i].missing:
                continue
            wait = self.mind.patience * float(self.layout.duration_ms[i])
            if i != planned and time + wait > until and not overdue:
                again = until + 0.25 * self.mind.unit_ms
                continue
            choices.append((time, int(self.layout.priority[i]), i))
        time, _, action = min(choices, default=(again, 0, -1))
        state = self.ranks[rank]
        state.doing, state.event_ms, state.action = "idle", time, action

    def _begin(self, rank, now):
        i = self.ranks[rank].action
        if i < 0:
            self._dispatch(rank, now)
            return
        self.hope[rank] = math.inf
        whole = self.layout
        guessed = whole.duration_ms.copy()
        guessed[i] *= self._guess(self.mind.near, i, rank)
        self.layout = whole._replace(duration_ms=guessed)
        super()._begin(rank, now)
        self.layout = whole
