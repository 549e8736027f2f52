"""What a site keeps to itself: the private folder of its kit, and the policy in it. Needs no FLARE for a kit path.

``<kit>/local/fedad/`` (0700) holds ``catalogue.yaml``, ``policy.yaml``, ``state/`` (private heads), ``privacy/``
(ledger and unit key), ``audit/`` (compliance log) and ``cache/`` (decoded images). It lies outside FLARE's run folders,
so it survives jobs, restarts and resubmissions.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedad_components.config import ExperimentConfig, explain
from fedad_components.files import make_private_dir
from fedad_components.imaging.catalogue import UniqueKeyLoader
from fedad_components.ledger_heads import FILE_NAME as LEDGER_HEADS
from fedad_components.privacy.policy import PolicyRefused, PrivacyRules, Rule, check_rules
from fedad_components.privacy.site_file import cause, is_there
from fedad_components.wire import shown

if TYPE_CHECKING:
    from nvflare.apis.fl_context import FLContext


SIMULATED_SITES = "FEDAD_SIMULATED_SITES"
"""For FLARE's simulator, which has no kits: environment variable that names a folder with one private folder a site."""


class SiteError(ValueError):
    """A site's private folder or policy that cannot be used; the message names the file and what was expected."""


@dataclass(frozen=True)
class SitePaths:
    """Paths of a site's private folder; the server's kit has one too, for its checkpoints."""

    root: Path

    @classmethod
    def of_kit(cls, kit: str | Path) -> SitePaths:
        """The private folder of a startup kit (the folder that holds ``startup/`` and ``local/``)."""
        return cls(Path(kit).resolve() / "local" / "fedad")

    @classmethod
    def from_context(cls, fl_ctx: FLContext) -> SitePaths:
        """The private folder of the site whose parent or job process ``fl_ctx`` belongs to.

        Raises:
            SiteError: if the context has no engine, or the kit has no private folder.
        """
        engine = fl_ctx.get_engine()
        if engine is None:
            raise SiteError("the FLARE context has no engine: the site's folder is only known after START_RUN")
        if simulated := os.environ.get(SIMULATED_SITES):
            return cls(Path(simulated).resolve() / fl_ctx.get_identity_name()).create()
        paths = cls.of_kit(engine.get_workspace().get_root_dir())
        if not paths.root.is_dir():
            raise SiteError(f"{paths.root}: missing; `fedad provision harden KIT` creates it")
        return paths

    @property
    def catalogue(self) -> Path:
        """Data-set id to folder, reader and columns."""
        return self.root / "catalogue.yaml"

    @property
    def policy(self) -> Path:
        """What the site allows; see SitePolicy."""
        return self.root / "policy.yaml"

    @property
    def state(self) -> Path:
        """Private heads and site statistics, one file an experiment."""
        return self.root / "state"

    @property
    def cache(self) -> Path:
        """Decoded images."""
        return self.root / "cache"

    @property
    def privacy(self) -> Path:
        """The privacy ledger and the key of the privacy units."""
        return self.root / "privacy"

    @property
    def approvals(self) -> Path:
        """The jobs that came for approval, and the reviewers' decisions."""
        return self.root / "approvals"

    @property
    def ledger(self) -> Path:
        """What each data set has spent of its privacy budget."""
        return self.privacy / "ledger.sqlite"

    @property
    def unit_key(self) -> Path:
        """Secret key that assigns patients to privacy units."""
        return self.privacy / "unit_key"

    @property
    def audit(self) -> Path:
        """The compliance log, of a site or of the server."""
        return self.root / "audit"

    @property
    def kit(self) -> Path | None:
        """The startup kit that the folder lies in; None in FLARE's simulator, which has no kits."""
        kit = self.root.parents[1]
        is_kit = any((kit / "startup" / name).is_file() for name in ("fed_server.json", "fed_client.json"))
        return kit if is_kit else None

    @property
    def ledger_head(self) -> Path:
        """Hash of the ledger's last row, kept apart from it."""
        return self.state / "_ledger_head.json"  # no name of an experiment, whose heads are beside it

    @property
    def ledger_heads(self) -> Path:
        """At the server: the last head of each site's privacy ledger, over all experiments."""
        return self.root / LEDGER_HEADS

    def experiment(self, name: str) -> Path:
        """At the server: checkpoint and records of an experiment, over all its jobs."""
        return make_private_dir(self.root / "experiments" / name)

    def create(self) -> SitePaths:
        """Make the folders, 0700 also where they exist already; never touches a file."""
        for folder in (self.root, self.state, self.cache, self.privacy, self.audit):
            make_private_dir(folder).chmod(0o700)
        return self


class SitePolicy(BaseModel):
    """What a site allows, whatever a job asks for.

    An absent file means the defaults: each job waits for this site's reviewer; jobs of any ``privacy.mode`` on any
    number of patients may train; the projection head and spectra of images stay at the site, and no image is public;
    jobs with differential privacy are bound to sigma >= 1 and delta <= 1e-5, and those of dp_sgd to epsilon <= 10 for
    adding or removing one unit (PRV accountant) over all jobs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    require_approval: bool = Field(
        default=True, description="whether a job waits until this site's reviewer has approved its digest"
    )
    allow_aggregated_head: bool = Field(
        default=False, description="whether the projection head may leave the site (`head: aggregated`, FedAvg-SSL)"
    )
    allow_shared_spectra: bool = Field(
        default=False,
        description="whether amplitude spectra of single images may leave the site, for the others (`method: feddg`)",
    )
    public_data_sets: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="data-set ids whose images are public: only they may be a job's privacy.public_data_set, which "
        "gets no protection",
    )
    privacy: PrivacyRules = Field(default_factory=PrivacyRules, description="rules for every data set")
    data_sets: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="data-set id -> rules that differ from `privacy` for it"
    )

    @model_validator(mode="after")
    def _each_data_set(self) -> SitePolicy:
        for data_set in self.data_sets:
            self.rules(data_set)
        return self

    def rules(self, data_set: str) -> PrivacyRules:
        """The rules for a data set."""
        own = self.data_sets.get(data_set, {})
        try:
            return PrivacyRules.model_validate({**self.privacy.model_dump(), **own})
        except ValidationError as error:
            raise ValueError(f"data_sets.{data_set}: {'; '.join(explain(PrivacyRules, error))}") from None

    def check(self, config: ExperimentConfig) -> None:
        """Refuse a job that this site does not allow, from its configuration alone.

        Raises:
            PolicyRefused: naming the rule.
        """
        if Rule.ALLOW_AGGREGATED_HEAD in config.permissions and not self.allow_aggregated_head:
            raise PolicyRefused(
                Rule.ALLOW_AGGREGATED_HEAD,
                "it is false in this site's policy.yaml, and the job asks for loss.head = 'aggregated': the site does "
                "not send its projection head",
            )
        if Rule.ALLOW_SHARED_SPECTRA in config.permissions and not self.allow_shared_spectra:
            raise PolicyRefused(
                Rule.ALLOW_SHARED_SPECTRA,
                "it is false in this site's policy.yaml, and the job asks for method 'feddg', which sends amplitude "
                "spectra of single images to the other sites: the site does not send them",
            )
        public = config.public_data_set
        if public is not None and public not in self.public_data_sets:
            raise PolicyRefused(
                Rule.PUBLIC_DATA_SETS,
                f"the job takes {public!r} for public images (privacy.public_data_set), and this site's policy.yaml "
                f"does not list it: add it there if, and only if, its images are public",
            )
        check_rules(config, self.rules(config.federation.data_set))

    @classmethod
    def load(cls, path: str | Path) -> SitePolicy:
        """Read ``policy.yaml``.

        Raises:
            SiteError: if something is there that is no such file, cannot be read, or has an unknown key or a wrong
                value: a policy is never guessed.
        """
        path = Path(path)
        try:
            if not is_there(path):
                return cls()
            data = yaml.load(_text(path), Loader=_PlainLoader)
        except OSError as error:
            raise SiteError(f"{cause(path, error)}; only without the file do the defaults hold") from None
        except RecursionError:
            raise SiteError(f"{path}: nested too deeply: {_EXPECTED}") from None
        except (ValueError, yaml.YAMLError) as error:  # a date that does not exist is a ValueError
            raise SiteError(f"{path}: cannot be read as YAML: {error}") from None
        if not isinstance(data, dict):
            found = "nothing" if data is None else f"a {type(data).__name__}"
            raise SiteError(f"{path}: {_EXPECTED}; found {found}")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            wrong = "; ".join(
                f"{shown('.'.join(map(str, item['loc'])))} = {shown(item['input'])}: {item['msg']}"
                for item in error.errors()
            )
            raise SiteError(f"{path}: {wrong}") from None


_EXPECTED = "expected `key: value` lines; delete the file to have the defaults"
_POLICY_BYTES = 16 * 1024
"""Most bytes of a policy, enough for 200 data sets."""


def _text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(_POLICY_BYTES + 1)
    if len(content) > _POLICY_BYTES:
        raise ValueError(f"more than {_POLICY_BYTES} bytes, which no policy has")
    return content.decode("utf-8")


class _PlainLoader(UniqueKeyLoader):
    """Of YAML only what means the same to every reader: no anchors, aliases and tags, and numbers in decimals alone.

    YAML 1.1 reads ``1:30`` as 90, and ``010`` as 8.
    """

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        if self.flow_level > 20:  # PyYAML looks ahead over all open brackets at each one
            raise RecursionError
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise yaml.composer.ComposerError(
                None, None, "an anchor, alias or tag (&, *, !): expected the value itself", event.start_mark
            )
        return super().compose_node(parent, index)

    def whole(self, node: yaml.ScalarNode) -> int:
        """``100``, but not ``1_00``, ``0x64``, ``0144`` or ``1:40``."""
        if not re.fullmatch(r"[-+]?(0|[1-9][0-9]{0,17})", node.value):
            raise self._no_number(node)
        return int(node.value)

    def real(self, node: yaml.ScalarNode) -> float:
        """``1.5`` or ``1.0e-5``, but not ``1:30.5``, ``.inf`` or ``.nan``."""
        if not re.fullmatch(r"[-+]?[0-9]*\.?[0-9]*([eE][-+]?[0-9]+)?", node.value):
            raise self._no_number(node)
        return float(node.value)

    def _no_number(self, node: yaml.ScalarNode) -> yaml.constructor.ConstructorError:
        return yaml.constructor.ConstructorError(
            None, None, f"{shown(node.value)}: expected a number in decimals, such as 8 or 0.5", node.start_mark
        )


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.whole)
_PlainLoader.add_constructor("tag:yaml.org,2002:float", _PlainLoader.real)
