"""What every experiment configures, and every default of FedAD, typed and validated, written once.

The job folder, the documentation (``docs/configuration.md``) and the command line are generated from these classes.
Values are the paper's; those its missing Table 3 would have held are derived from its figures and marked *derived*.
HistoFL's own settings are in ``mil/config.py``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedad_components.methods import METHODS, MethodCard, MethodName
from fedad_components.presets import PRESETS, PresetName
from fedad_components.privacy.policy import Rule
from fedad_components.reports import ReportError, ValidationCounts

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Names that become file names on a site or server: no separators, no leading dot."""


INVALID = "invalid FedAD configuration:\n"
"""Begins the message about wrong keys, a line each."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key, the value and what was expected."""


class Section(BaseModel):
    """One object of a configuration: unknown keys, and values of another type, are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class InitialWeights(Section):
    """Weights that every site starts from, as a file that the consortium supplies to the server."""

    file: str = Field(
        pattern=NAME_PATTERN,
        description="name of a safetensors file in the server's `local/fedad/`, with torchvision's ResNet-18 names; no "
        "path, so that a job cannot ask about other files",
    )
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of that file; another file is refused")


class ModelConfig(Section):
    """Extractor f(x; theta): torchvision's ResNet-18 without its last layer, 512 features (256 at half its width)."""

    image_size: int = Field(
        224, ge=32, le=1024, description="side of a view in pixels; below 96 the stem is small, unless it is chosen"
    )
    stem: Literal["auto", "imagenet", "small"] = Field(
        "auto",
        description="imagenet: 7x7, stride 2, and max-pool; small: 3x3, stride 1, without max-pool, which sees small "
        "images better and costs 16 times as much; auto: by the view's side",
    )
    base_channels: Literal[64, 32] = Field(
        64, description="channels of the stem: 64 is ResNet-18; 32 is half its width, for machines without a GPU"
    )
    norm: Literal["batch", "local", "group", "folded"] = Field(
        "batch",
        description="batch: running statistics are aggregated; local: they stay at the site (FedBN); group: GroupNorm; "
        "folded: the initial weights' BatchNorm statistics become constants of its scale and shift, and none are taken",
    )
    initial_weights: InitialWeights | None = Field(None, description="none: random initialisation from the seed")

    @model_validator(mode="after")
    def _something_to_fold(self) -> ModelConfig:
        if self.norm == "folded" and self.initial_weights is None:
            raise ValueError(
                "norm 'folded' takes its constants from initial_weights, which is not set: supply them, or use 'group'"
            )
        return self


class LossConfig(Section):
    """FedSD, Eqs. 2-4."""

    temperature: Positive = Field(0.1, description="tau of NT-Xent, Eq. 2 (derived)")
    gamma: NonNegative = Field(2.0, description="weight of the orthogonality loss, Eq. 4")
    semantic_alignment: Literal["vectors", "relations"] = Field(
        "vectors",
        description="vectors: 1 - cos(z_s, z_g), Eq. 3; relations: squared difference of the images' cosines with each "
        "other, in z_s and in z_g",
    )
    domain_alignment: Literal["opposite", "orthogonal", "none"] = Field(
        "opposite",
        description="opposite: 1 + cos(z_d, z_g), Eq. 3; orthogonal: cos^2(z_d, z_g), free of the conflict with Eq. 4; "
        "none: only z_s is aligned",
    )
    teacher_view: Literal["student", "whole"] = Field(
        "student",
        description="student: the teacher sees the student's views; whole: the image as it is, neither cropped nor "
        "jittered, one target for both views",
    )
    teacher_momentum: Decay = Field(
        0.0,
        description="0: the teacher is the round's global model; m: the site's moving average of the global models "
        "that it received, of which each round replaces a share 1 - m",
    )
    teacher_centering: bool = Field(False, description="subtract the batch mean from z_g before the cosine")
    decorrelation: Literal["image", "batch"] = Field(
        "image",
        description="image: cos^2(z_s, z_d) of each image, Eq. 4; batch: squared cross-correlation of z_s and "
        "z_d over the batch",
    )
    domain_target: Literal["teacher", "style"] = Field(
        "teacher", description="what z_d is aligned with: the teacher (Eq. 3), or style statistics of the image"
    )
    head_norm: Literal["none", "batch"] = Field(
        "none",
        description="batch: BatchNorm, by the batch alone, between the head's layers, as in SimCLR: NT-Xent leaves "
        "chance earlier",
    )
    head: Literal["private", "aggregated"] = Field(
        "private",
        description="private: phi never leaves the site; aggregated: averaged with the extractor "
        "(FedAvg-SSL), which a site refuses unless its policy allows it",
    )

    @model_validator(mode="after")
    def _one_target(self) -> LossConfig:
        if self.domain_target == "style" and self.domain_alignment != "opposite":
            raise ValueError(
                f"domain_alignment {self.domain_alignment!r} says how z_d meets the teacher, and domain_target 'style' "
                f"takes the teacher's place: leave domain_alignment at 'opposite'"
            )
        return self


class ATSAConfig(Section):
    """Adaptive teacher-student alignment, Eqs. 5-6 and Algorithm 1."""

    schedule: Literal["atsa", "fixed"] = Field("atsa", description="fixed: lambda_t = lambda_fixed in every round")
    lambda_min: NonNegative = Field(0.1, description="lower end of lambda_t, and its value in round 0 (derived)")
    lambda_max: NonNegative = Field(1.0, description="upper end of lambda_t (derived)")
    alpha: Probability = Field(0.9, description="momentum of lambda_t (derived)")
    k: Positive = Field(5.0, description="sensitivity to the instability (derived)")
    lambda_fixed: NonNegative = Field(0.5, description="lambda_t of the fixed schedule (the paper's ablation)")
    instability_scale: Literal["absolute", "relative"] = Field(
        "absolute", description="relative: the instability is divided by that of the first round"
    )
    stability_threshold: Positive = Field(
        0.05, description="instability at or below which the model counts as stable; only reported"
    )

    @model_validator(mode="after")
    def _ordered(self) -> ATSAConfig:
        if self.lambda_min > self.lambda_max:
            raise ValueError(f"lambda_min ({self.lambda_min}) must not exceed lambda_max ({self.lambda_max})")
        return self


class ViewsConfig(Section):
    """SimCLR's augmentation; parameters are drawn for each view."""

    crop_scale_min: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.08, description="smallest area of the random crop, as a share of the image"
    )
    flip_p: Probability = Field(0.5, description="horizontal flip")
    jitter_p: Probability = Field(0.8, description="colour jitter")
    brightness: NonNegative = Field(0.4, description="colour jitter's brightness")
    contrast: NonNegative = Field(0.4, description="colour jitter's contrast")
    saturation: NonNegative = Field(0.4, description="colour jitter's saturation")
    hue: Annotated[float, Field(ge=0.0, le=0.5)] = Field(
        0.4, description="colour jitter's hue; far from preserving the content of stained tissue"
    )
    greyscale_p: Probability = Field(0.2, description="conversion to grey")
    blur_p: Probability = Field(0.5, description="Gaussian blur, kernel 23 at 224 px and scaled with the view")
    blur_sigma: tuple[Positive, Positive] = Field(
        (0.1, 2.0), strict=False, description="range of the blur's sigma in pixels"
    )
    stain_jitter: NonNegative = Field(
        0.0, description="0: off; s: optical density of each channel times 1 +- s, plus N(0, 0.1), in 80 % of the views"
    )

    @field_validator("blur_sigma")
    @classmethod
    def _ascending(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] > value[1]:
            raise ValueError("expected the smaller sigma first")
        return value


class LocalTraining(Section):
    """What local training has in every algorithm."""

    epochs: int = Field(3, ge=1, le=1000, description="local epochs E in a round")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto: CUDA where there is one")


class TrainingConfig(LocalTraining):
    """Local training of one round, Algorithm 1."""

    batch_size: int = Field(64, ge=2, le=4096, description="images in a batch; a batch holds two views of each")
    learning_rate: Positive = Field(5e-4, description="Adam's learning rate; the optimiser is fresh in each round")
    weight_decay: NonNegative = Field(1e-5, description="Adam's L2 penalty")
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), strict=False, description="Adam's betas")
    max_images: int = Field(
        0, ge=0, description="0: all images of the data set; n: a seeded subset of n, the same in each round"
    )
    amp: Literal["auto", "bf16", "off"] = Field(
        "auto",
        description="auto: bf16 autocast where the GPU supports it; bf16: also on a CPU, which has to support it",
    )
    teacher_precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto: bf16 where the device computes it natively, else fp32"
    )


class PrivacyConfig(Section):
    """What a site adds so that what it sends reveals little about its patients, in every algorithm."""

    mode: Literal["none", "dp_sgd", "weight_noise", "client_dp"] = Field(
        "none",
        description="dp_sgd: group-clipped Gaussian mechanism at the site, proven for its units; weight_noise: "
        "HistoFL's noise, without any guarantee; client_dp: proven for whole hospitals, trusts the server",
    )
    noise_multiplier: Annotated[float, Field(gt=0.0, le=1e6)] = Field(
        2.0, description="dp_sgd, client_dp: sigma, the noise's standard deviation over max_grad_norm"
    )
    max_grad_norm: Positive = Field(
        1.0, description="dp_sgd: C, to which a unit's gradient is clipped; client_dp: S, the same for a site's update"
    )
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        1e-5, description="dp_sgd, client_dp: the delta at which epsilon is stated"
    )
    unit: Literal["patient", "bundle"] = Field(
        "bundle",
        description="dp_sgd: what is protected; patient: all images of a patient; bundle: all images of the patients "
        "that a keyed hash puts together. The site's catalogue declares how many units there are",
    )
    units_per_step: int = Field(32, ge=1, le=1_000_000, description="dp_sgd: expected units in a step")
    weight_noise_alpha: Positive = Field(
        0.1, description="weight_noise: alpha, the noise over each tensor's standard deviation"
    )
    force_small_federation: bool = Field(
        False, description="client_dp: run it also where the noise will drown the update"
    )


class ImagePrivacyConfig(PrivacyConfig):
    """What a site adds so that what it sends reveals little about its patients. docs/privacy.md says which mode proves
    what; a site's ``policy.yaml`` bounds every key.
    """

    unit_size: int = Field(
        8, ge=2, le=4096, description="dp_sgd: most images of a unit that a step uses, drawn anew in each step"
    )
    trainable: Literal["all", "affine_and_head"] = Field(
        "all", description="dp_sgd: all weights, or only the normalisation layers' scale and shift, and the head"
    )
    negatives: Literal["unit", "public"] = Field(
        "unit", description="dp_sgd: NT-Xent's negatives come from the unit itself, or from public images"
    )
    public_data_set: str | None = Field(
        None, pattern=NAME_PATTERN, description="data-set id of the public images for negatives: public"
    )

    @model_validator(mode="after")
    def _public_images(self) -> ImagePrivacyConfig:
        if (self.negatives == "public") != (self.public_data_set is not None):
            raise ValueError(
                f"negatives {self.negatives!r} with public_data_set {self.public_data_set!r}: expected a public data "
                f"set exactly where the negatives are public"
            )
        return self


class BaselinesConfig(Section):
    """What the methods beside FedAD have for parameters of their own; each is read by one ``method``."""

    prox_mu: NonNegative = Field(0.01, description="fedprox_ssl: mu of the proximal term")
    moon_mu: NonNegative = Field(1.0, description="moon: weight of the model-contrastive loss")
    moon_temperature: Positive = Field(0.5, description="moon: tau of the model-contrastive loss")
    ema_tau: NonNegative = Field(0.7, description="fedema: tau of the autoscaler")
    ema_decay: Probability = Field(0.99, description="fedema: momentum of the target network, for each step")
    gala_threshold: Annotated[float, Field(ge=-1.0, le=1.0)] = Field(
        0.0, description="fedgala: cosine with the global movement below which a layer's gradient is dropped"
    )
    gala_iterations: int = Field(3, ge=1, le=100, description="fedgala: iterations of the server's alignment")
    dg_alpha: Annotated[float, Field(gt=0.0, le=0.25)] = Field(
        0.03,
        description="feddg: alpha, half the side of the mask of low frequencies over the view's side; at least one "
        "frequency beside the mean",
    )
    dg_spectra: int = Field(64, ge=1, le=4096, description="feddg: images of which a site sends the amplitude spectrum")
    dis_weight: NonNegative = Field(0.2, description="feddis: weight of shape consistency and of latent orthogonality")


class FederationConfig(Section):
    """Who takes part, when, and what is on the wire."""

    experiment: str = Field(
        "fedad",
        pattern=NAME_PATTERN,
        description="name under which checkpoints and heads survive resubmission; not FLARE's job id",
    )
    data_set: str = Field("images", pattern=NAME_PATTERN, description="data-set id in each site's catalogue")
    rounds: int = Field(40, ge=1, le=100_000, description="rounds of the experiment, over all its submissions")
    sites_per_round: int = Field(0, ge=0, description="M of K sites drawn in each round; 0: all of them")
    min_sites: int = Field(2, ge=1, description="quorum: updates accepted in a round below which the job stops")
    round_timeout: int = Field(3600, ge=1, le=7 * 86400, description="seconds a round may take")
    wait_after_quorum: int = Field(
        600, ge=1, le=86400, description="seconds to wait for the others once the quorum has answered"
    )
    update: Literal["full", "difference"] = Field(
        "full", description="a site sends its weights or their difference to the round's"
    )
    wire_dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="floating-point type on the wire, both ways"
    )
    max_samples: int = Field(10_000_000, ge=1, description="a site's sample count above this is refused as absurd")


SILENT_MODES = frozenset({"dp_sgd", "client_dp"})
"""Modes of privacy in which nothing about the data leaves with the weights: no count, no loss."""

Self = TypeVar("Self", bound="ExperimentConfig")


class ExperimentConfig(Section):
    """What FLARE's components, the training process, privacy and audit need to know of an experiment.

    An algorithm adds its own sections, and overrides what it does otherwise; :mod:`fedad_components.algorithms` finds
    the class of a job's configuration.
    """

    trains_on: ClassVar[str] = "images"
    """As people write it."""

    seed: int = Field(0, ge=0, lt=2**63, description="every random stream of the experiment is derived from it")
    training: LocalTraining = Field(default_factory=LocalTraining)
    privacy: PrivacyConfig = Field(default_factory=PrivacyConfig)
    federation: FederationConfig = Field(default_factory=FederationConfig)

    @property
    def schedule(self) -> ATSAConfig:
        """Of lambda_t; an algorithm without an alignment has 0 throughout."""
        return ATSAConfig(schedule="fixed", lambda_min=0.0, lambda_fixed=0.0)

    @property
    def public_data_set(self) -> str | None:
        """Data set that a site has to hold for public, besides the one that it trains on."""
        return None

    @property
    def permissions(self) -> frozenset[Rule]:
        """Rules of a site's policy that have to allow what the sites would send."""
        return frozenset()

    @property
    def smallest_cell(self) -> int | None:
        """Fewest patients behind a count that a site would send; None where it sends none but n_k."""
        return None

    @property
    def loss_names(self) -> frozenset[str]:
        """Names of the losses that a site tells: fields of ``records.Losses``."""
        return frozenset({"total"})

    def surveys(self, round_number: int) -> bool:
        """Whether the sites send counts in this round and do not train."""
        return False

    def reports(self, round_number: int) -> frozenset[str]:
        """Fields of ``wire.ResultMeta`` that say something about the data: in this round these, and no others."""
        return frozenset() if self.privacy.mode in SILENT_MODES else frozenset({"n_samples", "losses"})

    def check_counts(
        self, events: list[int] | None, validation: ValidationCounts | None, n_samples: int | None
    ) -> None:
        """Check the counts that a site sends, where they are there, against the tables of this configuration.

        Raises:
            ReportError: naming the table that has another shape, a count that is too small, or tables that cannot be
                of the same patients, or of a site with ``n_samples``.
        """

    def check_edges(self, edges: list[float] | None, round_number: int) -> None:
        """Check the inner edges of time bins that the server sends with this round's task.

        Raises:
            ReportError: if they are not such as the survey finds, or there where no survey was.
        """
        if edges is not None:
            raise ReportError("bin_edges: expected no edges")

    def weight(self, n_samples: int | None) -> int:
        """Weight of a site's update in the mean: n_k; 1 where no count leaves a site."""
        return n_samples or 1

    def _conflicts(self) -> list[str]:
        """What the proof of the privacy mode rests on and this configuration does not give (docs/privacy.md)."""
        if self.privacy.mode == "client_dp" and self.federation.update != "difference":
            return ["what is clipped is the update: set federation.update to 'difference'"]
        return []

    @model_validator(mode="after")
    def _private(self) -> ExperimentConfig:
        if wrong := self._conflicts():
            raise ValueError(f"privacy.mode {self.privacy.mode!r} does not go with this: {'; '.join(wrong)}")
        return self

    @field_validator("federation")
    @classmethod
    def _quorum_reachable(cls, value: FederationConfig) -> FederationConfig:
        if 0 < value.sites_per_round < value.min_sites:
            raise ValueError(
                f"sites_per_round ({value.sites_per_round}) is below the quorum min_sites "
                f"({value.min_sites}): no round could succeed"
            )
        return value

    @classmethod
    def parse(cls: type[Self], data: dict[str, Any]) -> Self:
        """Validate a mapping.

        Raises:
            ConfigError: naming each wrong key, its value and what was expected.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(INVALID + "\n".join(explain(cls, error))) from None

    @classmethod
    def load(cls: type[Self], path: str | Path) -> Self:
        """Read a JSON file.

        Raises:
            ConfigError: if it is missing, not JSON, or not a valid configuration.
        """
        return cls.parse(read_settings(path))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, every default written out."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hex: the same on every machine for the same configuration."""
        return _sha256(self.to_json())

    def identity(self) -> str:
        """Digest of what makes the experiment: a resubmitted job may change only rounds, quorum and waits."""
        data = self.to_json()
        for key in ("rounds", "min_sites", "round_timeout", "wait_after_quorum"):
            del data["federation"][key]
        return _sha256(data)


class FedADConfig(ExperimentConfig):
    """An experiment of FedAD: what a job carries, and what sites and server compare by digest."""

    preset: PresetName = Field(
        "paper",
        description="fills in the settings that the job leaves out; paper: the paper's form; recommended: what the "
        "benchmark supports so far (docs/experiments.md)",
    )
    method: MethodName = Field(
        "fedad", description="FedAD, or a method to compare it with (docs/methods.md); it brings its own settings"
    )
    model: ModelConfig = Field(default_factory=ModelConfig)
    loss: LossConfig = Field(default_factory=LossConfig)
    atsa: ATSAConfig = Field(default_factory=ATSAConfig)
    views: ViewsConfig = Field(default_factory=ViewsConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    privacy: ImagePrivacyConfig = Field(default_factory=ImagePrivacyConfig)
    baselines: BaselinesConfig = Field(default_factory=BaselinesConfig)

    @model_validator(mode="before")
    @classmethod
    def _what_the_job_leaves_out(cls, data: Any) -> Any:
        """Fill it in from the preset, and over that from the method; what the job says itself stays."""
        if not isinstance(data, Mapping):
            return data
        filled = dict(data)
        methods: Mapping[Any, MethodCard] = METHODS
        presets: Mapping[Any, Mapping[str, Mapping[str, Any]]] = PRESETS
        card = methods.get(str(data.get("method", "fedad")))
        for settings in (card.settings if card else {}, presets.get(str(data.get("preset", "paper")), {})):
            for name, values in settings.items():
                section = filled.get(name, {})
                filled[name] = {**values, **section} if isinstance(section, Mapping) else section
        return filled

    @model_validator(mode="after")
    def _is_the_method(self) -> FedADConfig:
        for section, values in METHODS[self.method].settings.items():
            for name, value in values.items():
                found = getattr(getattr(self, section), name)
                if found != value:
                    raise ValueError(
                        f"{section}.{name} is {found!r}, and method {self.method!r} is what it is with {value!r}: "
                        f"leave it out, or choose another method"
                    )
        return self

    def _conflicts(self) -> list[str]:
        wrong = super()._conflicts()
        if self.privacy.mode in ("dp_sgd", "client_dp") and self.method not in ("fedad", "fedavg_ssl"):
            wrong.append(f"method {self.method!r} has no proof: use 'fedad' or 'fedavg_ssl'")
        if self.privacy.public_data_set == self.federation.data_set:
            wrong.append(
                f"privacy.public_data_set {self.privacy.public_data_set!r} is the data set to be protected: public "
                f"images have to be others"
            )
        if self.privacy.mode == "dp_sgd":
            if self.model.norm not in ("folded", "group"):
                wrong.append(
                    f"model.norm {self.model.norm!r} couples the images of a batch: use 'group', or 'folded' with "
                    f"public initial weights"
                )
            if self.loss.head_norm == "batch":
                wrong.append("loss.head_norm 'batch' couples the images of a batch: use 'none'")
            if self.loss.domain_target == "style":
                wrong.append("loss.domain_target 'style' fits statistics to the site's images: use 'teacher'")
            if self.training.max_images:
                wrong.append(
                    f"training.max_images {self.training.max_images} makes the choice of an image depend on the "
                    f"others: use 0"
                )
        if self.privacy.mode == "client_dp" and self.model.norm == "batch":
            wrong.append("model.norm 'batch' sends statistics of the images: use 'group', 'local' or 'folded'")
        return wrong

    @property
    def schedule(self) -> ATSAConfig:
        """ATSA's, or a fixed lambda_t."""
        return self.atsa

    @property
    def loss_names(self) -> frozenset[str]:
        """Those of Eqs. 1 to 4."""
        return frozenset({"total", "contrastive", "alignment", "orthogonality"})

    @property
    def public_data_set(self) -> str | None:
        """Of ``privacy.negatives: public``."""
        return self.privacy.public_data_set

    @property
    def permissions(self) -> frozenset[Rule]:
        """For a projection head that is aggregated, and for FedDG's spectra."""
        needed = {
            Rule.ALLOW_AGGREGATED_HEAD: self.loss.head == "aggregated",
            Rule.ALLOW_SHARED_SPECTRA: self.method == "feddg",
        }
        return frozenset(rule for rule, asked in needed.items() if asked)


def read_settings(path: str | Path) -> dict[str, Any]:
    """What a JSON file sets, not yet validated.

    Raises:
        ConfigError: if it is missing, or not a JSON object.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply: expected sections of settings") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {type(data).__name__}")
    return data


def _sha256(data: dict[str, Any]) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def explain(model: type[BaseModel], error: ValidationError, where: tuple[str, ...] = (), no_key: str = "") -> list[str]:
    """One line for each wrong key of ``model``: the key, below ``where``, its value, and what was expected.

    ``no_key`` is a field that does not come from the user's file.
    """
    lines = []
    for item in error.errors():
        path = ".".join(str(part) for part in (*where, *item["loc"])) or "(top level)"
        reason = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            known = (key for key in _keys(model, item["loc"][:-1]) if key != no_key)
            reason = f"unknown key: expected one of {', '.join(known)}"
        lines.append(f"  {path} = {item['input']!r}: {reason}")
    return lines


def _keys(model: type[BaseModel], parents: tuple[int | str, ...]) -> list[str]:
    for name in parents:
        annotation = model.model_fields[str(name)].annotation
        model = next(kind for kind in (annotation, *get_args(annotation)) if hasattr(kind, "model_fields"))
    return list(model.model_fields)


def check_name(value: str, what: str) -> str:
    """Return ``value`` if it may become a file name, else raise ConfigError."""
    if not re.fullmatch(NAME_PATTERN, value):
        raise ConfigError(
            f"{what} {value!r}: expected letters, digits, '.', '_' or '-', at most 64, starting with a letter or digit"
        )
    return value
