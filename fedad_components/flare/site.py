"""What a site keeps to itself: the private folder of its kit, and the policy in it. Needs no FLARE for a kit path.

``<kit>/local/fedad/`` (0700) holds ``catalogue.yaml``, ``policy.yaml``, ``state/`` (private heads), ``privacy/``
(ledger and unit key) and ``cache/`` (decoded images). It lies outside FLARE's run folders, so it survives jobs,
restarts and resubmissions.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedad_components.config import FedADConfig, explain
from fedad_components.files import make_private_dir
from fedad_components.imaging.catalogue import UniqueKeyLoader
from fedad_components.privacy.policy import PolicyRefused, PrivacyRules, Rule, check_rules

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
    def ledger(self) -> Path:
        """What each data set has spent of its privacy budget."""
        return self.privacy / "ledger.sqlite"

    @property
    def unit_key(self) -> Path:
        """Secret key that assigns patients to privacy units."""
        return self.privacy / "unit_key"

    @property
    def ledger_head(self) -> Path:
        """Hash of the ledger's last row, kept apart from it."""
        return self.state / "_ledger_head.json"  # no name of an experiment, whose heads are beside it

    def experiment(self, name: str) -> Path:
        """At the server: checkpoint and records of an experiment, over all its jobs."""
        return make_private_dir(self.root / "experiments" / name)

    def create(self) -> SitePaths:
        """Make the folders, 0700 also where they exist already; never touches a file."""
        for folder in (self.root, self.state, self.cache, self.privacy):
            make_private_dir(folder).chmod(0o700)
        return self


class SitePolicy(BaseModel):
    """What a site allows, whatever a job asks for. An absent file means these defaults: the strictest choice."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    allow_aggregated_head: bool = Field(
        default=False, description="whether the projection head may leave the site (`head: aggregated`, FedAvg-SSL)"
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

    def check(self, config: FedADConfig) -> None:
        """Refuse a job that this site does not allow, from its configuration alone.

        Raises:
            PolicyRefused: naming the rule.
        """
        if config.loss.head == "aggregated" and not self.allow_aggregated_head:
            raise PolicyRefused(
                Rule.ALLOW_AGGREGATED_HEAD,
                "it is false in this site's policy.yaml, and the job asks for loss.head = 'aggregated': the site does "
                "not send its projection head",
            )
        public = config.privacy.public_data_set
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
            SiteError: if it is unreadable or has an unknown key or a wrong value: a policy is never guessed.
        """
        path = Path(path)
        if not path.exists():
            return cls()
        try:
            data = yaml.load(path.read_text(encoding="utf-8"), Loader=UniqueKeyLoader) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise SiteError(f"{path}: cannot be read as YAML: {error}") from error
        if not isinstance(data, dict):
            raise SiteError(f"{path}: expected `key: value` lines, got {type(data).__name__}")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            wrong = "; ".join(
                f"{'.'.join(map(str, item['loc']))} = {item['input']!r}: {item['msg']}" for item in error.errors()
            )
            raise SiteError(f"{path}: {wrong}") from None
