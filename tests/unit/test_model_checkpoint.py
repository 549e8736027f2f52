"""A saved round comes back bit-equal, and a wrong one is refused with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedad_components.checkpoint import Checkpoint, CheckpointError
from fedad_components.config import FedADConfig

IDENTITY = FedADConfig.parse({}).identity()


def saved(path: Path) -> Checkpoint:
    theta = {"w": torch.randn(5, generator=torch.Generator().manual_seed(0))}
    checkpoint = Checkpoint(theta, 7, {"lambda_t": 0.1 + 0.2, "history": [0.2, 0.1]}, IDENTITY)
    checkpoint.save(path)
    return checkpoint


def test_round_trip_is_exact(tmp_path: Path) -> None:
    before = saved(tmp_path / "c")
    after = Checkpoint.load(tmp_path / "c", IDENTITY)
    assert torch.equal(after.theta["w"], before.theta["w"])
    assert (after.next_round, after.atsa) == (7, {"lambda_t": 0.1 + 0.2, "history": [0.2, 0.1]})


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", None])
def test_a_damaged_file_is_refused_with_the_fix(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "c"
    saved(path)
    path.write_bytes(path.read_bytes()[:-3] if damage is None else damage)
    with pytest.raises(CheckpointError, match=r"not a usable checkpoint.*move it away"):
        Checkpoint.load(path, IDENTITY)


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "c")
    other = FedADConfig.parse({"loss": {"gamma": 0.0}}).identity()
    with pytest.raises(CheckpointError, match=r"another configuration.*federation.experiment"):
        Checkpoint.load(tmp_path / "c", other)


def test_rounds_quorum_and_waits_may_change_between_submissions() -> None:
    changed = {"rounds": 99, "min_sites": 1, "round_timeout": 5, "wait_after_quorum": 6}
    assert FedADConfig.parse({"federation": changed}).identity() == IDENTITY
    assert FedADConfig.parse({"federation": changed}).digest() != FedADConfig.parse({}).digest()
