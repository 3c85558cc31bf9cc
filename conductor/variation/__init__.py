"""Models that turn expected into realised durations."""

from conductor.variation.links import LinkDelay, split_links
from conductor.variation.lognormal import LognormalNoise
from conductor.variation.markov import MarkovStragglers
from conductor.variation.pauses import ForwardPauses
from conductor.variation.sequence_lengths import SequenceLengths
from conductor.variation.shared import MicrobatchFactor, RankFactor, StageFactor
from conductor.variation.step import StepFactor
from conductor.variation.traced import TracedMicrobatches, TracedReplicas
from conductor.variation.uniform import UniformNoise
from conductor.variation.variation import Factor, NoVariation, Product, Variation

__all__ = [
    "Factor",
    "ForwardPauses",
    "LinkDelay",
    "LognormalNoise",
    "MarkovStragglers",
    "MicrobatchFactor",
    "NoVariation",
    "Product",
    "RankFactor",
    "SequenceLengths",
    "StageFactor",
    "StepFactor",
    "TracedMicrobatches",
    "TracedReplicas",
    "UniformNoise",
    "Variation",
    "split_links",
]
