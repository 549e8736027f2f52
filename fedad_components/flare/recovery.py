"""What the server does about jobs that were running when it was killed."""

from __future__ import annotations

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import SystemComponents
from nvflare.apis.fl_context import FLContext


class AbandonedJobs(FLComponent):
    """Marks them FINISHED:ABANDONED, before the first job is scheduled.

    FLARE does not resume a job after a restart; left alone it stays RUNNING for ever, cannot be aborted or deleted, and
    keeps every later job waiting. The experiment itself goes on from its checkpoint when the job is submitted again.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Act once, between the server's start and its job runner's."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            fl_ctx.get_engine().get_component(SystemComponents.JOB_RUNNER).update_unfinished_jobs(fl_ctx)
