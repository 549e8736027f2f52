"""Template of a site's extra egress filter: an emergency stop. While ``local/fedad/HOLD`` exists, no result leaves.

Copy it into the kit's ``local/custom/`` and list it *before* StrictEgress in the kit's ``local/privacy.json``::

    "task_result_filters": [
      {"path": "hold_filter.HoldFilter", "args": {}},
      {"path": "fedad_components.flare.egress.StrictEgress", "args": {}}
    ]

The list is read when a job starts; the file is looked at for each result: ``touch local/fedad/HOLD`` acts at once.
"""

from __future__ import annotations

from nvflare.apis.filter import Filter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedad_components.flare.site import SitePaths


class HoldFilter(Filter):
    """Refuses every task result while the site's HOLD file exists.

    A filter refuses by raising: FLARE then sends an error in place of the result. Never return an empty or altered
    result instead, and do nothing in an event handler, where FLARE swallows exceptions.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Pass the result on unchanged, or raise."""
        hold = SitePaths.from_context(fl_ctx).root / "HOLD"
        if hold.exists():
            # fire_event=False keeps it in the site's log: the console's `show_errors` has every other warning.
            self.log_warning(fl_ctx, f"held: nothing leaves this site while {hold} exists", fire_event=False)
            raise RuntimeError("held by the site")
        return shareable
