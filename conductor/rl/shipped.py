"""The weights that planners and dispatchers use: the package's own, or a file of the user's."""

from __future__ import annotations

from pathlib import Path

from conductor.errors import FormatError, MissingExtraError
from conductor.rl.kernels import NUM_FEATURES
from conductor.rl.play import Weights
from conductor.rl.weights import SHIPPED, load_weights, shipped_policy


def has_shipped_policy() -> bool:
    """Whether the package has a policy with it."""
    return SHIPPED.exists()


def policy_weights(policy: str | Path | Weights | None = None) -> Weights:
    """The weights of a policy.

    Args:
        policy: an .npz file; a training's .pt file (needs torch), whose best policy counts; weights; None is
            the policy that comes with the package.

    Raises:
        FormatError: the file cannot be read or holds no policy for today's observations.
        MissingExtraError: a training without PyTorch.
    """
    if policy is None:
        return shipped_policy().weights
    if isinstance(policy, tuple):
        if policy[0].shape[0] != NUM_FEATURES:
            raise FormatError(
                f"the policy observes {policy[0].shape[0]} features, but decisions have {NUM_FEATURES}"
            )
        return policy
    if Path(policy).suffix != ".pt":
        return load_weights(policy).weights
    try:
        from conductor.rl.checkpoint import load_checkpoint
    except ImportError:
        raise MissingExtraError(
            f"{policy} is a training, which needs PyTorch: pip install 'conductor-pipeline[rl]'"
        ) from None
    return load_checkpoint(policy).best_policy()
