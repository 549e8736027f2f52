"""The site's deployer: what reaches FLARE's own, what does not and why, and what FLARE starts afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from approval_jobs import FILES, LEAD, META, Authority, archive, kit, renewed, signed
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobLauncherSpec, add_launcher
from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
from nvflare.private.fed.utils.app_deployer import AppDeployer
from nvflare.private.fed.utils.fed_utils import get_job_launcher

from fedad_components.audit.event import Event, Kind, Outcome
from fedad_components.audit.reading import read
from fedad_components.flare.approval import UNUSABLE, JobApproval, approvals_of

SITE = "hospital-a"


class Site:
    """A site's parent process, as far as FLARE's deployment goes."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.kit = kit(folder / SITE, SITE, authority)
        self.deployer = JobApproval()

    def policy(self, text: str) -> None:
        (self.kit / "local" / "fedad" / "policy.yaml").write_text(text)

    def deploy(self, app: bytes, number: int = 1, **meta: Any) -> str | None:
        """The refusal."""
        workspace = SimpleNamespace(get_root_dir=lambda: str(self.kit))
        whole = {**META, **renewed(number), **meta}
        return self.deployer.deploy(workspace, whole["job_id"], whole, "app", app, FLContext())

    def start(self, number: int = 1, **meta: Any) -> Any:
        """FLARE's choice of a launcher for the job, with ours among the components that hear of it."""

        class Launcher(JobLauncherSpec):
            def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> Any:
                raise AssertionError

        context = FLContext()

        def fire_event(event: str, fl_ctx: FLContext) -> None:
            assert event == EventType.BEFORE_JOB_LAUNCH
            self.deployer.handle_event(event, fl_ctx)
            add_launcher(Launcher(), fl_ctx)

        class Context:
            def __enter__(self) -> FLContext:
                return context

            def __exit__(self, *error: object) -> None:
                pass

        context.set_prop(FLContextKey.WORKSPACE_ROOT, str(self.kit), private=True, sticky=False)
        engine = SimpleNamespace(new_context=Context, fire_event=fire_event)
        context.get_engine = lambda: engine
        return type(get_job_launcher({**META, **renewed(number), **meta}, context)).__name__

    def approve(self) -> None:
        approvals = approvals_of(self.kit)
        for entry in approvals.entries():
            approvals.decide(entry, "approved")

    def events(self) -> list[Event]:
        return [located.event for located in read([self.kit / "local" / "fedad" / "audit"])]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def lead(authority: Authority) -> Any:
    return authority.person(LEAD)


@pytest.fixture(scope="module")
def app(lead: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return signed(lead, tmp_path_factory.mktemp("app"))


@pytest.fixture
def site(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Its policy's file is not there, so that the defaults hold; FLARE's deployer takes what reaches it."""
    monkeypatch.setattr(AppDeployer, "deploy", lambda *arguments: None)
    return Site(tmp_path, authority)


def test_only_identical_content_runs(site: Site, app: bytes, lead: Any, tmp_path: Path) -> None:
    assert "held until this site's reviewer approves job digest" in str(site.deploy(app))
    site.approve()
    again = signed(lead, tmp_path / "again")
    assert again != app
    assert site.deploy(again, number=2) is None
    others = {
        "a byte": {**FILES, "config/config_fed_client.json": b'{"format_version": 1}'},
        "a file": {**FILES, "config/more.json": b"{}"},
    }
    for name, files in others.items():
        assert "held until" in str(site.deploy(signed(lead, tmp_path / name.replace(" ", "-"), files), number=3)), name
    assert "held until" in str(site.deploy(app, number=4, min_clients=1))
    assert "a clone" in str(site.deploy(app, number=5, cloned_from=renewed(2)["job_id"]))
    assert site.deploy(app, number=6) is None


@pytest.mark.parametrize("required", [True, False])
def test_the_signer_is_the_submitter(site: Site, app: bytes, required: bool) -> None:
    """The server says who submitted; FLARE itself takes any signer of the consortium."""
    site.policy(f"require_approval: {str(required).lower()}\n")
    answer = str(site.deploy(app, submitter_name="eve@example.org"))
    assert "signed by somebody else than its submitter" in answer
    assert LEAD in answer
    event = site.events()[-1]
    assert (event.event, event.outcome) == (Kind.JOB_APPROVAL, Outcome.REFUSED)
    assert event.reason == "refused: signed by somebody else than its submitter"


@pytest.mark.parametrize("required", [True, False])
def test_unsigned_partly_signed_and_foreign_jobs_are_refused(
    site: Site, lead: Any, authority: Authority, tmp_path: Path, required: bool
) -> None:
    site.policy(f"require_approval: {str(required).lower()}\n")
    assert "not signed" in str(site.deploy(archive(FILES)))
    stranger = Authority(tmp_path / "other").person(LEAD)
    assert "not signed" in str(site.deploy(signed(stranger, tmp_path / "foreign")))
    both = tmp_path / "both"
    signed(lead, both)
    _, other = authority.person("other@example.org")
    shutil.copy(other, both / "config" / ".__nvfl_submitter.crt")
    assert "not signed" in str(site.deploy(zip_directory_to_bytes(str(both), "")))


def test_unsafe_archives_are_refused_with_the_reason(site: Site) -> None:
    assert site.deploy(archive({"../x": b""})) == "refused: '../x': a path that leads out of the app (..)"
    assert approvals_of(site.kit).entries() == []
    assert site.events()[-1].reason == "refused: a path that leads out of the app (..)"


def test_where_no_approval_is_required_a_signed_job_runs(site: Site, app: bytes) -> None:
    site.policy("require_approval: false\n")
    assert site.deploy(app) is None
    assert site.start() == "Launcher"
    assert approvals_of(site.kit).entries() == []


@pytest.mark.parametrize("policy", ["require_approval: perhaps\n", "- 1\n", "require_approvals: false\n"])
def test_a_policy_that_cannot_be_read_lets_nothing_run(site: Site, app: bytes, policy: str) -> None:
    site.policy(policy)
    assert site.deploy(app) == UNUSABLE
    with pytest.raises(RuntimeError, match="Exactly one job launcher"):
        site.start()


def test_a_log_that_cannot_be_written_lets_nothing_run(site: Site, app: bytes) -> None:
    site.deploy(app)
    site.approve()
    (site.kit / "local" / "fedad" / "audit").chmod(0o777)  # then others may write it, and the log refuses
    assert site.deploy(app) == UNUSABLE


def test_the_server_cannot_start_what_was_not_deployed_or_is_not_approved_any_more(site: Site, app: bytes) -> None:
    def refused(**meta: Any) -> bool:
        with pytest.raises(RuntimeError, match="Exactly one job launcher"):
            site.start(**meta)
        return True

    site.deploy(app)
    assert refused()  # pending
    site.approve()
    assert refused()  # approved, and not deployed since
    assert site.deploy(app) is None
    assert site.start(status="DISPATCHED", job_clients=[{"name": SITE}]) == "Launcher"
    assert refused(custom_props={"x": "y"})
    approvals = approvals_of(site.kit)
    approvals.decide(approvals.entries()[0], "rejected")
    assert refused()
    assert "has rejected" in str(site.deploy(app))
