"""A saved round: all that the server needs to go on with an experiment after a restart. Imports no FLARE."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from fedad_components.files import write_tensors

FILE_NAME = "checkpoint.safetensors"
_FORMAT = "1"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be resumed from; the message names the file, the problem and the fix."""


@dataclass(frozen=True)
class Checkpoint:
    """theta, the state of ATSA and the number of the coming round, in one file, so that they cannot disagree.

    The draw of a round's sites depends on seed and round alone, and each site keeps its own head: neither needs state
    here.
    """

    theta: dict[str, torch.Tensor]
    next_round: int
    atsa: dict[str, Any]
    identity: str
    """``FedADConfig.identity()`` of the experiment."""

    def save(self, path: str | Path) -> None:
        """Replace the file atomically."""
        state = {"next_round": self.next_round, "atsa": self.atsa, "identity": self.identity}
        write_tensors(path, self.theta, {"format": _FORMAT, "state": json.dumps(state)})

    @classmethod
    def load(cls, path: str | Path, identity: str) -> Checkpoint:
        """Read the file and check that it belongs to this experiment.

        Raises:
            CheckpointError: if it cannot be read, or was written under another configuration.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                theta = {name: file.get_tensor(name) for name in sorted(file.keys())}
            if metadata.get("format") != _FORMAT:
                raise ValueError(f"format {metadata.get('format')!r}, expected {_FORMAT!r}")
            state = json.loads(metadata["state"])
            checkpoint = cls(theta, int(state["next_round"]), dict(state["atsa"]), str(state["identity"]))
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path}: not a usable checkpoint ({error}): restore it from a backup, or move it away to start the "
                f"experiment anew"
            ) from error
        if checkpoint.identity != identity:
            raise CheckpointError(
                f"{path}: written by this experiment under another configuration: submit the job with the "
                f"configuration that it was started with (only rounds, quorum and waits may change), or give the new "
                f"one another federation.experiment"
            )
        return checkpoint
