"""Models that turn expected into realised durations."""

from conductor.variation.markov import MarkovStragglers
from conductor.variation.shared import MicrobatchFactor, RankFactor, StageFactor
from conductor.variation.uniform import UniformNoise
from conductor.variation.variation import Factor, NoVariation, Product, Variation

__all__ = [
    "Factor",
    "MarkovStragglers",
    "MicrobatchFactor",
    "NoVariation",
    "Product",
    "RankFactor",
    "StageFactor",
    "UniformNoise",
    "Variation",
]
