"""A saved round: all that the server needs to go on with an experiment after a restart. Imports no FLARE."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from fedad_components.files import write_tensors

FILE_NAME = "checkpoint.safetensors"
BEST_PREFIX = "best."
"""Begins the names of the best round's weights, beside the last one's."""
_FORMAT = "1"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be resumed from; the message names the file, the problem and the fix."""


@dataclass(frozen=True)
class Checkpoint:
    """theta, the state of ATSA and of the monitor, the best weights and the number of the coming round, in one file, so
    that they cannot disagree.

    The draw of a round's sites depends on seed and round alone, and each site keeps its own head: neither needs state
    here.
    """

    theta: dict[str, torch.Tensor]
    next_round: int
    atsa: dict[str, Any]
    identity: str
    """``ExperimentConfig.identity()`` of the experiment."""
    monitor: dict[str, Any] = field(default_factory=dict)
    """State of the algorithm's :class:`~fedad_components.algorithms.monitor.Monitor`."""
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    """The weights with the best validation so far; empty where the sites do not validate."""

    def save(self, path: str | Path) -> None:
        """Replace the file atomically."""
        state = {
            "next_round": self.next_round,
            "atsa": self.atsa,
            "identity": self.identity,
            "monitor": self.monitor,
        }
        tensors = self.theta | {BEST_PREFIX + name: tensor for name, tensor in self.best.items()}
        write_tensors(path, tensors, {"format": _FORMAT, "state": json.dumps(state)})

    @classmethod
    def load(cls, path: str | Path, identity: str) -> Checkpoint:
        """Read the file and check that it belongs to this experiment.

        Raises:
            CheckpointError: if it cannot be read, or was written under another configuration.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
            if metadata.get("format") != _FORMAT:
                raise ValueError(f"format {metadata.get('format')!r}, expected {_FORMAT!r}")
            state = json.loads(metadata["state"])
            checkpoint = cls(
                {name: tensor for name, tensor in tensors.items() if not name.startswith(BEST_PREFIX)},
                int(state["next_round"]),
                dict(state["atsa"]),
                str(state["identity"]),
                dict(state.get("monitor", {})),
                {
                    name.removeprefix(BEST_PREFIX): tensor
                    for name, tensor in tensors.items()
                    if name.startswith(BEST_PREFIX)
                },
            )
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
