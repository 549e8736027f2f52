"""`fedad diagnose`: is z_s free of the site, and does z_d hold it? Prints numbers over all images, none of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedad_components.cli.config import ConfigFile, Settings, read_config
from fedad_components.cli.messages import complain

if TYPE_CHECKING:
    from fedad_components.config import FedADConfig
    from fedad_components.evaluation.diagnose import Diagnosis, OverHeads, Predictability
    from fedad_components.evaluation.disentanglement import PairedCosine
    from fedad_components.evaluation.site_vectors import SiteVectors

EPILOG = (
    "Examples:\n\nfedad diagnose extractor.safetensors --site a=catalogue.yaml:images "
    "--head a=state/fedad/round-000039.safetensors --config experiment.json\n\n"
    "fedad diagnose extractor.safetensors --site a=a.yaml:images --site b=b.yaml:images --figure site.svg --json\n\n"
    "Exit codes: 0 diagnosed; 1 an option, the extractor, a head, a catalogue or a data set cannot be used."
)


def diagnose(
    extractor: Annotated[
        Path, typer.Argument(metavar="EXTRACTOR", help="extractor.safetensors of a job's result.", show_default=False)
    ],
    site: Annotated[
        list[str],
        typer.Option(metavar="NAME=CATALOGUE:ID", help="A site's images: catalogue and data set; may be repeated."),
    ],
    head: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="That site's head: the last round-….safetensors in its kit's local/fedad/state/EXPERIMENT. "
            "Sites without one share a random head.",
        ),
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    images: Annotated[
        int, typer.Option(min=10, help="Most images of a site; of more, a seeded subset is drawn.")
    ] = 1000,
    mine: Annotated[bool, typer.Option(help="Estimate the mutual information; it takes most of the time.")] = True,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1 ...")] = "cpu",
    figure: Annotated[
        Path | None, typer.Option(help="Also plot how well site and class can be told: .svg or .png.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Diagnose what an extractor's z_s, z_d and z_g hold.

    Heads are private: a site runs this alone with its own, or a researcher
    with several. The experiment's configuration gives the seed of the
    projection p and the augmentation. docs/diagnostics.md explains each
    number.
    """
    from fedad_components.evaluation.diagnose import diagnose as diagnose_vectors

    parsed = read_config(config, settings, "fedad")
    try:
        with Console(stderr=True).status("reading") as status:
            vectors = _vectors(extractor, site, head or [], parsed, images, device, status.update)
            status.update("probes, mutual information, reconstruction")
            diagnosis = diagnose_vectors(vectors, parsed.seed, mine)
        if figure:
            from fedad_components.evaluation.diagnose_figure import write_figure

            write_figure(diagnosis, figure)
    except (OSError, RuntimeError, ValueError) as error:  # whose messages name file, site or key
        complain(error)
        raise typer.Exit(1) from None
    if as_json:
        print(diagnosis.model_dump_json(indent=2))
    else:
        _print(diagnosis)


def _vectors(
    extractor: Path,
    site: list[str],
    head: list[str],
    config: FedADConfig,
    most: int,
    device: str,
    say: Callable[[str], None],
) -> list[SiteVectors]:
    """What the extractor and all heads make of each site's images."""
    import copy

    import numpy as np
    import torch

    from fedad_components.evaluation.catalogued import open_extractor
    from fedad_components.evaluation.domain import adabn, lacks_statistics
    from fedad_components.evaluation.site_vectors import RANDOM_HEAD, read_head, site_vectors
    from fedad_components.fedsd.model import build_projection, feature_count, head_of
    from fedad_components.fedsd.seeds import PUBLIC, stream
    from fedad_components.fedsd.state import require_names
    from fedad_components.fedsd.trainer import STATISTICS_PREFIX, choose_device
    from fedad_components.imaging.cache import cache_side
    from fedad_components.imaging.catalogue import Catalogue
    from fedad_components.imaging.ingest import ingest

    sources = _pairs("--site", site, "NAME=CATALOGUE:ID")
    files = _pairs("--head", head, "NAME=FILE")
    if strangers := sorted(files.keys() - sources.keys()):
        raise ValueError(f"--head {strangers[0]}: no such site: expected one of {', '.join(sources)}")
    on = choose_device(device)
    module, image_size = open_extractor(extractor)
    read = {name: read_head(file, config) for name, file in files.items()}
    heads = {name: trained for name, (trained, _) in read.items()}
    if sources.keys() - files.keys():
        heads[RANDOM_HEAD] = head_of(config, PUBLIC)
    heads = {name: trained.to(on).eval() for name, trained in heads.items()}
    projection = build_projection(config.seed, feature_count(config.model)).to(on)

    vectors = []
    for name, source in sources.items():
        catalogue, _, data_set = source.rpartition(":")
        if not catalogue or not data_set:
            raise ValueError(f"--site {name}={source}: expected NAME=CATALOGUE:ID, such as a=catalogue.yaml:images")
        say(f"images of {name}")
        entry = Catalogue.load(catalogue).data_set(data_set)
        cached = ingest(entry, Path(catalogue).absolute().parent / "cache", cache_side(image_size))
        rows = torch.randperm(len(cached), generator=stream(config.seed, "diagnose images", name))[:most]
        chosen = rows.sort().values.numpy()
        pixels = np.asarray(cached.images[chosen])

        of_site = copy.deepcopy(module).to(on)
        statistics = read[name][1] if name in read else {}
        if statistics:
            buffers = {key: tensor for key, tensor in of_site.named_buffers() if key in statistics}
            require_names(statistics, buffers, f"{files[name]}: {STATISTICS_PREFIX}")
            of_site.load_state_dict(statistics, strict=False)
        elif lacks_statistics(of_site):
            of_site = adabn(of_site, pixels, image_size, config.seed)
        vectors.append(
            site_vectors(
                name,
                pixels,
                of_site,
                heads,
                projection,
                config.views,
                image_size,
                own=name if name in heads else RANDOM_HEAD,
                labels=[cached.labels[row] for row in chosen],
                patients=[cached.patients[row] for row in chosen],
                seed=config.seed,
            )
        )
    return vectors


def _pairs(option: str, given: list[str], form: str) -> dict[str, str]:
    """``NAME=VALUE`` of each, by name."""
    from fedad_components.config import check_name

    pairs: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not value:
            raise ValueError(f"{option} {text!r}: expected {form}")
        check_name(name, f"{option}: name")
        if name in pairs:
            raise ValueError(f"{option} {name}: given twice: expected each site once")
        pairs[name] = value
    return pairs


def _print(diagnosis: Diagnosis) -> None:
    console = Console(highlight=False, markup=False)
    table = Table(
        "told from",
        *(Column(name, justify="right") for name in ("h", "z_s", "z_d", "chance", "confounder")),
        title=f"Balanced accuracy of a linear probe, out of fold; one head for all sites: {', '.join(diagnosis.heads)}",
        title_justify="left",
    )
    for result in (diagnosis.site, diagnosis.label):
        if result:
            table.add_row(f"{result.what} ({len(result.classes)})", *_row(result))
    if table.row_count:
        console.print(table)
    if diagnosis.site and (own := diagnosis.site.own_heads):
        scores = ", ".join(f"{name} {score:.2f}" for name, score in own.items())
        console.print(f"The site, each by its own head: {scores}: this tells the heads apart.", soft_wrap=True)
    leakage = Table("reconstructed from", "style, R²", "thumbnail, R²", title="Leakage; null 0", title_justify="left")
    for name, share in diagnosis.leakage.items():
        leakage.add_row(name, _over_heads(share.style), _over_heads(share.thumbnail))
    console.print(leakage)
    sites = Table("", *(item.site for item in diagnosis.sites), title="Each site by its own head", title_justify="left")
    sites.add_row("head", *(item.head for item in diagnosis.sites))
    sites.add_row("images", *(str(item.images) for item in diagnosis.sites))
    sites.add_row("dead z_d", *(f"{item.dead_z_d:.0%}" for item in diagnosis.sites))
    for name in ("z_s", "z_d", "z_g"):
        values = (getattr(item, f"pairwise_{name}") for item in diagnosis.sites)
        sites.add_row(f"cos({name}, {name}') of two images", *map(_number, values))
    for u, v in (("z_s", "z_d"), ("z_s", "z_g"), ("z_d", "z_g")):
        cosines: list[PairedCosine | None] = [getattr(item, f"{u}_{v}") for item in diagnosis.sites]
        sites.add_row(f"cos({u}, {v}); shuffled", *(f"{c.mean:.2f}; {c.shuffled:.2f}" if c else "–" for c in cosines))
    information = [item.mutual_information for item in diagnosis.sites]
    sites.add_row(
        "I(z_s; z_d) ≥, nats; shuffled; ceiling",
        *(f"{i.nats:.2f}; {i.null:.2f}; {i.ceiling:.1f}" if i else "–" for i in information),
    )
    sites.add_row(
        "alignment; two images", *(f"{item.alignment:.2f}; {item.alignment_null:.2f}" for item in diagnosis.sites)
    )
    sites.add_row(
        "uniformity; floor", *(f"{item.uniformity:.2f}; {item.uniformity_floor:.2f}" for item in diagnosis.sites)
    )
    console.print(sites)
    for note in diagnosis.notes:
        console.print(f"Note: {note}", soft_wrap=True)


def _row(result: Predictability) -> list[str]:
    chance = f"{result.chance:.2f} ± {result.chance_deviation:.2f}"
    scores = (_over_heads(score) for score in (result.h, result.z_s, result.z_d))
    return [*scores, chance, _number(result.confounder)]


def _over_heads(score: OverHeads | None) -> str:
    """``0.54``, or ``0.54 (0.50–0.57)`` where heads differ."""
    if score is None:
        return "dead"
    spread = f" ({score.low:.2f}–{score.high:.2f})" if score.low != score.high else ""
    return f"{score.mean:.2f}{spread}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
