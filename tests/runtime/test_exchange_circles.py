"""Nobody waits in a circle, however requests, answers and what ranks tell cross each other."""

from types import SimpleNamespace

import numpy as np
import pytest

from conductor.runtime.exchange.lender import Lender
from conductor.runtime.exchange.links import Packet, What

RANKS, EVENTS = 5, 300


class Rank:
    """A rank of which only the answers are real; it asks, begins and ends as chance has it."""

    def __init__(self, number, mail):
        self.number, self.mail = number, mail
        self.asking, self.asked = False, set()
        self.lenders = set()
        self.action = 0
        self.station = SimpleNamespace(
            running_since_ns=None, serving=None, promise=None, is_open=True, busy_until_ns=0,
            busy_ns=lambda action, parts: 0, inbox=SimpleNamespace(put=lambda item: None),
            tell=lambda *to: None,
            send=lambda to, what, *numbers: mail[number, to].append((what, numbers)),
        )  # fmt: skip
        self.lender = Lender(self.station, None, self)

    @property
    def waits(self):
        return self.asking or bool(self.lenders)

    def begin(self):
        if not (self.station.running_since_ns or self.station.serving):
            if self.station.promise is not None:
                self.station.serving, self.station.promise = self.station.promise, None
            else:
                self.station.running_since_ns, self.action = 1, self.action + 1

    def ask(self, others):
        if self.station.running_since_ns and not self.waits:
            self.asking, self.asked = True, set(others)
            for to in others:
                promised = int(self.station.promise is not None)
                numbers = (self.action, 0, 1000, 0, 10**9, 0, 0, promised)
                self.mail[self.number, to].append((What.REQUEST, numbers))

    def hear(self, sender, what, numbers):
        if what is What.REQUEST:
            self.lender.answer(sender, Packet(what=what, step=0, numbers=numbers))
        elif what is What.STATE:
            self.lender.settled(sender)
        else:
            self.asked.discard(sender)
            if what is What.ACCEPT:
                self.lenders.add(sender)
            if not self.asked:
                self.asking = False
                for to in self.lenders:
                    self.mail[self.number, to].append((What.STATE, ()))

    def end(self, ranks):
        """Ends what does not wait."""
        station = self.station
        if station.running_since_ns and not self.waits:
            station.running_since_ns = None
        elif station.serving is not None:
            borrower = ranks[station.serving.borrower]
            if not borrower.asking:
                borrower.lenders.discard(self.number)
                station.serving = None


def has_circle(ranks):
    """Whether running actions wait for each other: through ranks that run, or that serve others' actions."""
    after = {}
    for rank in ranks:
        after[rank.number] = set()
        for number in rank.lenders:
            station = ranks[number].station
            if station.running_since_ns:
                after[rank.number].add(number)
            elif station.serving is not None and station.serving.borrower != rank.number:
                after[rank.number].add(station.serving.borrower)
    left = set(after)
    while free := {number for number in left if not after[number] & left}:
        left -= free
    return bool(left)


@pytest.mark.parametrize("rule", ["as it is", "always yes"])
def test_no_circle_and_without_the_rule_there_are_some(rule):
    circles = promises = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        mail = {(a, b): [] for a in range(RANKS) for b in range(RANKS)}
        ranks = [Rank(number, mail) for number in range(RANKS)]
        if rule == "always yes":
            for rank in ranks:
                rank.lender._borrower = SimpleNamespace(waits=False)
        for _ in range(EVENTS):
            rank = ranks[rng.integers(RANKS)]
            what = rng.integers(5)
            if what == 0:
                rank.begin()
            elif what == 1:
                others = [r for r in rng.permutation(RANKS).tolist() if r != rank.number]
                rank.ask(others[: rng.integers(1, 4)])
            elif what == 2:
                rank.end(ranks)
            else:
                waiting = [link for link, letters in mail.items() if letters]
                if waiting:
                    sender, receiver = waiting[rng.integers(len(waiting))]
                    letter = mail[sender, receiver].pop(0)
                    ranks[receiver].hear(sender, *letter)
                    promises += letter[0] is What.ACCEPT
            circles += has_circle(ranks)
    assert promises > 1000
    assert (circles > 0) == (rule == "always yes")
