"""Clocks of ranks on several machines are put together by the messages between them."""

import numpy as np

from conductor.runtime.clocks import clock_offsets_ms, link_samples, merged

STAGES = (0, 1, 2)
AHEAD = np.array([0.0, 700.0, -20.0])
"""Of each rank's clock."""


def transfers(ahead=AHEAD, jitter=(0.0, 2.0, 5.0)):
    """Messages of 3 ms between all neighbours, both ways, as their receivers see them."""
    return {
        (is_grad, stage): [
            (3.0 + more + ahead[stage] - ahead[stage + (1 if is_grad else -1)], False)
            for more in jitter
        ]
        for is_grad, stages in ((False, (1, 2)), (True, (0, 1)))
        for stage in stages
    }


def test_offsets_between_machines_are_found_along_the_links():
    np.testing.assert_allclose(clock_offsets_ms(STAGES, transfers(), ["a", "b", "c"]), AHEAD)


def test_ranks_of_one_machine_share_its_clock():
    # Rank 2's messages say 20 ms, but it is on the machine of rank 1.
    offsets = clock_offsets_ms(STAGES, transfers(), ["a", "b", "b"])
    np.testing.assert_allclose(offsets, [0.0, 700.0, 700.0])


def test_without_messages_both_ways_clocks_are_taken_as_they_are():
    forward = {key: times for key, times in transfers().items() if not key[0]}
    assert clock_offsets_ms(STAGES, forward, ["a", "b", "c"]).tolist() == [0.0, 0.0, 0.0]


def test_link_times_are_those_of_both_directions_on_one_clock():
    links = link_samples(STAGES, transfers(), AHEAD)
    assert {link: sorted(ms) for link, ms in links.items()} == {
        0: [3.0, 3.0, 5.0, 5.0, 8.0, 8.0],
        1: [3.0, 3.0, 5.0, 5.0, 8.0, 8.0],
    }


def test_what_had_come_before_counts_only_where_nothing_else_is_known():
    late = {(False, 1): [(30.0, True), (9.0, True)], (False, 2): [(30.0, True), (4.0, False)]}
    assert link_samples(STAGES, late, np.zeros(3)) == {0: [9.0], 1: [4.0]}
    assert merged([late, {(False, 2): [(5.0, False)]}])[False, 2] == [
        (30.0, True), (4.0, False), (5.0, False)
    ]  # fmt: skip
