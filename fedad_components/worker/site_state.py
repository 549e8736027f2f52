"""The private state of a site in one experiment: its head, and its own BatchNorm statistics where those stay local.

One file a finished round, the last two kept: when the server repeats a round after a restart, the site starts it from
the state with which it entered that round the first time, so that the repetition gives the same weights.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from fedad_components.files import FileLock, make_private_dir, write_tensors

_KEPT = 2


class SiteStateError(RuntimeError):
    """Private state that cannot be used; the message names the file and the fix."""


class SiteStateStore:
    """Files under ``<kit>/local/fedad/state/<experiment>/``, 0700/0600, used by one process at a time.

    ``identity`` is ``ExperimentConfig.identity()``: a head belongs to the configuration it was trained under.
    """

    def __init__(self, folder: str | Path, identity: str) -> None:
        self.folder = make_private_dir(folder)
        self.identity = identity
        self._lock = FileLock(self.folder / "lock")

    def lock(self) -> None:
        """Take the folder for this process; raises LockedError if another one has it."""
        self._lock.acquire()

    def load_before(self, round_number: int) -> dict[str, torch.Tensor] | None:
        """The state with which the site enters ``round_number``; None before its first round.

        Raises:
            SiteStateError: if the file is damaged, or another configuration's. A new head is not made silently: it
                would undo the site's training.
        """
        earlier = [number for number in self._rounds() if number < round_number]
        if not earlier:
            return None
        path = self._path(max(earlier))
        try:
            with safe_open(path, framework="pt") as file:
                identity = (file.metadata() or {}).get("identity")
                state = {name: file.get_tensor(name) for name in sorted(file.keys())}
        except (OSError, SafetensorError) as error:
            raise SiteStateError(
                f"{path}: the site's private state is damaged ({error}): restore it from a backup, or remove the file "
                f"to go on from the state of the round before it, or from a new head"
            ) from error
        if identity != self.identity:
            raise SiteStateError(
                f"{path}: the site's private state is of another configuration under the same experiment name: give "
                f"the new one another federation.experiment, or move {self.folder} away if the old one is given up"
            )
        return state

    def save(self, round_number: int, state: dict[str, torch.Tensor]) -> None:
        """Write the state after ``round_number`` atomically and drop what is older than the last two rounds."""
        write_tensors(self._path(round_number), state, {"round": str(round_number), "identity": self.identity})
        later = [number for number in self._rounds() if number > round_number]
        stale = sorted(number for number in self._rounds() if number <= round_number)[:-_KEPT]
        for number in stale + later:
            self._path(number).unlink(missing_ok=True)

    def _path(self, round_number: int) -> Path:
        return self.folder / f"round-{round_number:06d}.safetensors"

    def _rounds(self) -> list[int]:
        names = (re.fullmatch(r"round-(\d+)\.safetensors", path.name) for path in self.folder.iterdir())
        return [int(match[1]) for match in names if match]
