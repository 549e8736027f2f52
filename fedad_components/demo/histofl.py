"""``fedad demo --job histofl``: slides at three hospitals, from preparing them to heatmaps, on this machine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console
from sklearn.metrics import roc_auc_score

from fedad_components.algorithms import initial_state
from fedad_components.algorithms.histofl import HistoFL
from fedad_components.config import ConfigError
from fedad_components.demo.data import DemoDataError
from fedad_components.demo.encoder import FEATURES, write_encoder
from fedad_components.demo.slides import CLASSES, HOSPITALS, planted_share, write_hospital
from fedad_components.demo.slides_summary import PlantedSlide, SlidesSummary
from fedad_components.demo.steps import (
    COMPLETED,
    REPORT_FILE,
    SUMMARY_FILE,
    DemoError,
    Finished,
    Hospital,
    federate,
    new_folder,
    say,
)
from fedad_components.demo.summary import job_fields
from fedad_components.files import sha256_of, write_atomic
from fedad_components.flare.recipe import HistoFLRecipe
from fedad_components.mil.attention import score_bag, write_heatmaps
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.evaluate import table
from fedad_components.mil.report import write_report
from fedad_components.mil.site_evaluation import CONFIG, evaluate_site
from fedad_components.mil.site_report import report_of
from fedad_components.mil.state import SavedModel, load_bag_model
from fedad_components.records import RoundRecord
from fedad_components.slides.bags import SlideBag, load_bags
from fedad_components.slides.catalogue import SlideEntry, load_catalogue
from fedad_components.slides.encoder import load_encoder
from fedad_components.slides.prepare import Settings, prepare
from fedad_components.slides.reader import SlidesError, require_openslide

ENCODER_FILE = "encoder.safetensors"
PATCH = 128
"""Pixels of a patch: a quarter of the usual area, since the demo's slides are small."""
MIN_CELL = 2
"""Patients behind a count: each hospital validates and tests two of a class; by the usual 5, none could be counted."""
AUC = "AUC within sites"
"""Of counts of few patients, the score that is exact."""
LABELS_ARE_MADE_UP = (
    "The labels are made up. Every slide is a mirrored, restained part of one real slide; on those called 'planted', "
    "this program made the nuclei inside some ellipses brown. Parts overlap, also between training and test: the "
    "figures show that the pieces work together, and nothing about tissue or diagnosis."
)
COUNTS_ARE_SMALL = (
    f"Counts of {MIN_CELL} patients leave these hospitals (counts.min_cell and each policy's min_cell_count), as they "
    f"have no more of a class to validate on. The default is 5: keep it where there are patients enough."
)


@dataclass(frozen=True)
class SlidesOptions:
    """What `fedad demo --job histofl` was asked for."""

    out: Path
    rounds: int = 12
    seed: int = 0

    def config(self, encoder_sha256: str) -> HistoFLConfig:
        """Classification; more local epochs than the paper's, as a hospital trains on 12 slides only.

        Raises:
            DemoError: if an option is out of range.
        """
        try:
            return HistoFLConfig.parse(
                {
                    "seed": self.seed,
                    "target": {"classes": list(CLASSES)},
                    "model": {"in_features": FEATURES, "encoder_sha256": encoder_sha256},
                    "training": {"epochs": 16},
                    "counts": {"min_cell": MIN_CELL},
                    "stopping": {"patience": 4, "min_rounds": 6},
                    "federation": {
                        "experiment": "demo",
                        "rounds": self.rounds,
                        "round_timeout": 1800,
                        "wait_after_quorum": 600,
                    },
                }
            )
        except ConfigError as error:
            raise DemoError(str(error)) from None


@dataclass(frozen=True)
class Site:
    """A hospital's slides and features."""

    name: str
    catalogue: Path
    features: Path
    slides: int
    patches: int

    def entries(self) -> dict[str, SlideEntry]:
        """By pseudonym."""
        return {entry.slide: entry for entry in load_catalogue(self.catalogue)}


def run_slides_demo(options: SlidesOptions, console: Console) -> SlidesSummary:
    """Run the demo and write ``summary.json``, ``report.html`` and ``model.safetensors`` into ``options.out``.

    Raises:
        DemoError: if OpenSlide is missing, the folder is in use, or the federation does not do what it should in time.
    """
    started = time.monotonic()
    try:
        require_openslide()
    except SlidesError as error:
        raise DemoError(str(error)) from None
    out = new_folder(options.out)
    say(console, f"1. slides for {len(HOSPITALS)} hospitals. {LABELS_ARE_MADE_UP}")
    try:
        sites = list(_prepare(out, options.seed, console))
    except (SlidesError, DemoDataError) as error:
        raise DemoError(str(error)) from error
    config = options.config(sha256_of(out / ENCODER_FILE))
    data_set, rule = config.federation.data_set, {"min_cell_count": MIN_CELL}
    hospitals = {
        site.name: Hospital({"kind": "bags", "folder": str(site.features)}, {"data_sets": {data_set: rule}})
        for site in sites
    }
    say(console, f"   {COUNTS_ARE_SMALL}")
    done = federate(out, HistoFLRecipe(config), hospitals, console, _told)
    summary = _summary(done, config, sites, started)
    if done.results and done.rounds:
        if summary.stopped_early:
            say(console, f"   stopped early: no better validation for {config.stopping.patience} rounds")
        say(console, f"6. test patients and heatmaps, at each hospital, with the model of round {summary.best_round}")
        shutil.copyfile(done.results / HistoFL.model_file, out / HistoFL.model_file)
        summary = _look(out, done.results, config, sites, summary)
        for method, scores in summary.test.items():
            say(
                console, f"   {method}, {AUC}: " + "  ".join(f"{site} {_score(of[AUC])}" for site, of in scores.items())
            )
        for slide in summary.planted:
            say(
                console,
                f"   {slide.site}, slide {slide.slide}: planted patches at percentile {slide.percentile_planted:.0f}, "
                f"others {slide.percentile_others:.0f}",
            )
    summary = summary.model_copy(update={"wall_s": time.monotonic() - started})
    summary.write(out / SUMMARY_FILE)
    if summary.test:
        _write_report(out, summary)
        say(console, f"7. done in {summary.wall_s:.0f} s. Report: {out / REPORT_FILE}")
    return summary


def _prepare(out: Path, seed: int, console: Console) -> Iterator[Site]:
    """Cut each hospital's slides and prepare them, as ``fedad slides prepare`` does."""
    write_encoder(out / ENCODER_FILE, seed)
    settings = Settings(preset="biopsy", side=PATCH)
    for number, name in enumerate(HOSPITALS):
        say(console, f"   {name}: cutting and preparing its slides")
        catalogue = write_hospital(out / "data" / name, number, seed)
        features = out / "data" / name / "features"
        encoder = load_encoder("fedad", out / ENCODER_FILE)
        account = prepare(load_catalogue(catalogue), features, encoder, settings, device=torch.device("cpu"), workers=2)
        site = Site(name, catalogue, features, len(account.used), sum(record.patches for record in account.used))
        say(console, f"   {name}: {site.slides} slides prepared, {site.patches} patches")
        yield site


def _told(record: RoundRecord) -> str:
    losses = "  ".join(f"{site} {loss.total:.3f}" for site, loss in record.losses.items() if loss.total is not None)
    found = record.validation
    validation = ""
    if found is not None:
        best = ", the best so far" if found.best else ""
        validation = (
            f"; validation AUC of the model it began with {_score(found.auc)} ({found.patients} patients{best})"
        )
    return f"{record.seconds:.0f} s; loss {losses}{validation}"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _summary(done: Finished, config: HistoFLConfig, sites: list[Site], started: float) -> SlidesSummary:
    names = [site.name for site in sites]
    better = [record.round for record in done.rounds if record.validation and record.validation.best]
    return SlidesSummary(
        **job_fields(
            done.rounds,
            status=done.status,
            job_id=done.job_id,
            sites=names,
            config=config,
            wall_s=time.monotonic() - started,
            notes=[LABELS_ARE_MADE_UP, COUNTS_ARE_SMALL],
        ),
        labels=LABELS_ARE_MADE_UP,
        slides={site.name: site.slides for site in sites},
        patches={site.name: site.patches for site in sites},
        encoder_sha256=config.model.encoder_sha256 or "",
        validation=[record.validation for record in done.rounds],
        best_round=better[-1] if better else None,
        stopped_early=done.status == COMPLETED and len(done.rounds) < config.federation.rounds,
        test={},
        planted=[],
    )


def _look(out: Path, results: Path, config: HistoFLConfig, sites: list[Site], summary: SlidesSummary) -> SlidesSummary:
    """Evaluate the test patients at each hospital; heatmaps of the first one's planted test slides."""
    untrained = out / "untrained"
    untrained.mkdir()
    HistoFL().save_model(untrained / HistoFL.model_file, initial_state(config), config, {})
    shutil.copyfile(results / CONFIG, untrained / CONFIG)
    evaluations = out / "evaluations"
    evaluations.mkdir()
    model = load_bag_model(results / HistoFL.model_file)
    planted: list[PlantedSlide] = []
    for site in sites:
        for method, folder in (("federated", results), ("untrained", untrained)):
            found = evaluate_site(folder, site.features, site.name, method=method)
            told = found.told.model_dump_json(exclude_none=True)
            write_atomic(evaluations / f"{method}-{site.name}.json", told.encode("utf-8"))
        entries = site.entries()
        bags = {
            bag.slide: bag
            for bag in load_bags(site.features)
            if bag.patient in found.patients and entries[bag.slide].label == CLASSES[1]
        }
        planted += [_planted(site.name, entries[slide].path, bag, model) for slide, bag in bags.items()]
        if site is sites[0]:
            slides = {slide: entries[slide].path for slide in bags}
            write_heatmaps(slides, site.features, model, out / "heatmaps")
    report = report_of(sorted(evaluations.iterdir()), title="")
    rows: dict[str, dict[str, dict[str, float | None]]] = {}
    for row in table(report.classified):
        scores = {name: None if found is None else found.mean for name, found in row.scores.items()}
        rows.setdefault(row.method, {})[row.site] = scores
    return summary.model_copy(update={"test": rows, "planted": planted})


def _planted(site: str, slide: Path, bag: SlideBag, model: SavedModel) -> PlantedSlide:
    scored = score_bag(bag, model)
    mask = slide.parent.parent / "planted" / f"{slide.stem}.npy"
    inside = planted_share(mask, bag.coordinates, scored.footprint) >= 0.5
    percentiles = scored.percentiles
    return PlantedSlide(
        site=site,
        slide=bag.slide,
        patches=len(inside),
        planted=int(inside.sum()),
        percentile_planted=float(percentiles[inside].mean()),
        percentile_others=float(percentiles[~inside].mean()),
        auc=float(roc_auc_score(inside, scored.attention)),
    )


def _write_report(out: Path, summary: SlidesSummary) -> None:
    report = report_of(
        sorted((out / "evaluations").iterdir()),
        title="FedAD demo: HistoFL on made-up labels",
        heatmaps=out / "heatmaps",
    )
    validation = [found.auc if found else None for found in summary.validation]
    facts = {
        "status": f"{summary.status}, {summary.wall_s:.0f} s in all",
        "hospitals": ", ".join(
            f"{site}: {summary.slides[site]} slides, {summary.patches[site]} patches, {summary.n_samples.get(site, 0)} "
            f"slides to train on"
            for site in summary.sites
        ),
        "rounds": f"{summary.rounds} of {summary.rounds_planned}"
        + (", stopped early" if summary.stopped_early else "")
        + f"; the result is the model that round {summary.best_round} began with",
        "validation AUC by round": ", ".join(map(_score, validation)),
        "refused": "; ".join(
            f"round {number}, {site}: {why}"
            for number, of_round in enumerate(summary.refused)
            for site, why in of_round.items()
        )
        or "none",
        "attention": f"on {len(summary.planted)} planted test slides: planted patches at percentile "
        f"{fmean(slide.percentile_planted for slide in summary.planted):.0f}, others at "
        f"{fmean(slide.percentile_others for slide in summary.planted):.0f}",
        "encoder": f"FedAD's network, seeded and not trained; SHA-256 {summary.encoder_sha256[:12]}…",
    }
    notes = [*summary.notes, *report.notes]
    write_report(replace(report, facts={**facts, **report.facts}, notes=notes), out / REPORT_FILE)
