from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conductor.errors import FormatError
from conductor.rl.kernels import NUM_FEATURES
from conductor.rl.weights import StoredPolicy, load_weights, save_weights


def policy(features: int = NUM_FEATURES, hidden: int = 6) -> StoredPolicy:
    rng = np.random.default_rng(0)
    shapes = ((features, hidden), (1, hidden), (hidden, hidden), (1, hidden), (hidden, 4), (1, 4))
    shapes += ((hidden, 1), (1, 1))
    arrays = tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return StoredPolicy(weights=arrays[:6], critic=arrays[6:], meta={"seed": 3})


def test_a_policy_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    saved = policy()
    save_weights(tmp_path / "policy.npz", saved)
    loaded = load_weights(tmp_path / "policy.npz")
    for ours, theirs in zip(
        saved.weights + saved.critic, loaded.weights + loaded.critic, strict=True
    ):
        assert np.array_equal(ours, theirs)
        assert theirs.dtype == np.float32
    assert loaded.meta == {"format": "conductor-weights-1", "features": NUM_FEATURES, "seed": 3}


def test_a_policy_of_other_observations_is_refused(tmp_path: Path) -> None:
    save_weights(tmp_path / "policy.npz", policy(NUM_FEATURES + 1))
    with pytest.raises(FormatError, match=f"observes {NUM_FEATURES + 1} features"):
        load_weights(tmp_path / "policy.npz")


@pytest.mark.parametrize("content", [b"", b"no policy", b"PK\x03\x04broken"])
def test_another_file_holds_no_policy(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "policy.npz"
    file.write_bytes(content)
    with pytest.raises(FormatError, match="holds no policy"):
        load_weights(file)


def test_another_array_file_holds_no_policy(tmp_path: Path) -> None:
    np.savez(tmp_path / "policy.npz", weights=np.zeros(3))
    with pytest.raises(FormatError, match="holds no policy: KeyError"):
        load_weights(tmp_path / "policy.npz")


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"cannot read .*missing\.npz: No such file"):
        load_weights(tmp_path / "missing.npz")


def test_playing_a_stored_policy_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['gymnasium'] = None;"
        "import conductor.rl.weights, conductor.rl.play, conductor.rl.plans"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
