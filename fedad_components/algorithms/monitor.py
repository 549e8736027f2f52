"""What the server does between rounds beside Delta and lambda_t. Imports no FLARE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedad_components.reports import Validation, ValidationCounts


class Monitor:
    """Hears what the sites report in a round; this one has nothing to do with it.

    Its state is plain JSON and part of the checkpoint.
    """

    bin_edges: list[float] | None = None
    """What goes to the sites with the coming round's task."""
    stopped: bool = False
    """Whether the experiment ends before its last round."""

    def update(
        self, round_number: int, events: Mapping[str, list[int]], counts: Mapping[str, ValidationCounts]
    ) -> Validation | None:
        """A finished round's reports, by site: of the survey's events, and of the validation.

        Returns:
            How good the round's **incoming** model was, where the sites validate.

        Raises:
            ValueError: if the experiment cannot go on from what was reported.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON types; empty where there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved :meth:`state_dict`."""
