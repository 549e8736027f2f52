"""Rounds over mutual TLS with one hostile site: what is learnt, what is refused, and what is on the wire."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support import checkpoint_of, give_images, records_of, small_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torchvision.models import resnet18

from fedad_components.config import FedADConfig
from fedad_components.demo.federation import Federation
from fedad_components.fedsd.state import initial_state, trainable_names, wire_spec
from fedad_components.flare.recipe import FedADRecipe, export_job
from fedad_components.flare.tracking import numbers_of
from fedad_components.records import RoundRecord

pytestmark = pytest.mark.federation

SITES = ["alpha", "beta", "mallory"]
HONEST = ["alpha", "beta"]
ROUNDS = 5
TAMPER = Path(__file__).parent / "tamper"


@dataclass
class Finished:
    """A job that has run, with a tap on the server's network and one on each site's exit."""

    federation: Federation
    config: FedADConfig
    job_id: str
    status: str
    frames: Path
    updates: Path
    results: Path

    @property
    def records(self) -> list[RoundRecord]:
        return records_of(self.federation, "rounds")

    @property
    def log(self) -> str:
        """The server's log of the job, as the operator downloads it."""
        return "".join(path.read_text() for path in self.results.rglob("log.txt"))

    def update(self, site: str, number: int) -> tuple[dict[str, torch.Tensor], int]:
        """What StrictEgress let out of a site in a round: tensors and sample count."""
        path = self.updates / f"{site}-{number}.safetensors"
        with safe_open(path, "pt") as file:
            return load_file(path), int(file.metadata()["n_samples"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    folder = tmp_path_factory.mktemp("rounds")
    frames, updates = folder / "frames", folder / "updates"
    frames.mkdir()
    updates.mkdir()
    config = small_config("rounds", ROUNDS)
    tap = {
        "PYTHONPATH": str(TAMPER),
        "TAMPER_FRAMES": str(frames),
        "TAMPER_UPDATES": str(updates),
        "TAMPER_POISON": "mallory",
    }
    with Federation(folder / "federation", SITES, env=tap) as federation:
        give_images(federation, folder / "images")
        federation.start()
        job_id = federation.submit(export_job(FedADRecipe(config, tracking="tensorboard"), folder / "jobs"))
        status = federation.wait(job_id, timeout=300)
        results = federation.download(job_id, folder / "results")
        yield Finished(federation, config, job_id, status, frames, updates, results)
        federation.stop()
        assert federation.processes() == []
    for file in frames.iterdir():  # some hundred megabytes
        file.unlink()


def test_the_job_completes_with_every_round_recorded(finished: Finished) -> None:
    assert finished.status == "FINISHED:COMPLETED", finished.log
    assert [record.round for record in finished.records] == list(range(ROUNDS))
    assert all(math.isfinite(loss.total or math.nan) for record in finished.records for loss in record.losses.values())


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (0, "conv1.weight: holds a non-finite value"),
        (1, "bn1.bias: holds a non-finite value"),
        (2, "unexpected tensor(s), first 'head.0.weight'"),
        (3, "n_samples"),
    ],
)
def test_a_poisoned_update_is_refused_by_name(finished: Finished, number: int, reason: str) -> None:
    record = finished.records[number]
    assert record.participants == HONEST
    assert list(record.refused) == ["mallory"]
    assert reason in record.refused["mallory"]
    assert f"update of site 'mallory' refused: {record.refused['mallory']}" in finished.log


def test_an_honest_update_of_the_same_site_counts_again(finished: Finished) -> None:
    assert finished.records[4].participants == SITES
    assert finished.records[4].refused == {}


def test_the_aggregate_is_the_mean_of_the_accepted_updates(finished: Finished) -> None:
    sent = [finished.update(site, ROUNDS - 1) for site in finished.records[-1].participants]
    weights = [n_samples for _, n_samples in sent]
    assert len(set(weights)) == len(SITES)  # so that a plain mean would fail
    final = load_file(checkpoint_of(finished.federation, "rounds"))
    for name, tensor in final.items():
        stacked = np.stack([update[name].numpy().astype(np.float64) for update, _ in sent])
        expected = np.average(stacked, axis=0, weights=weights)
        np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=name)


def mean_of(finished: Finished, number: int) -> dict[str, torch.Tensor]:
    sent = [finished.update(site, number) for site in finished.records[number].participants]
    total = sum(n_samples for _, n_samples in sent)
    return {
        name: torch.stack([update[name].double() * (n_samples / total) for update, n_samples in sent]).sum(0)
        for name in sent[0][0]
    }


def test_instability_and_lambda_follow_the_papers_equations(finished: Finished) -> None:
    """Eqs. 5-6 by numpy, from the honest sites' updates: poison has moved neither the model nor lambda_t."""
    atsa, names = finished.config.atsa, sorted(trainable_names(finished.config))
    theta, lambda_t = initial_state(finished.config), atsa.lambda_min
    for number, record in enumerate(finished.records):
        new = mean_of(finished, number)
        flat_new, flat_old = (np.concatenate([s[n].double().numpy().ravel() for n in names]) for s in (new, theta))
        delta = np.linalg.norm(flat_new - flat_old) / (np.linalg.norm(flat_old) + 1e-8)
        assert record.lambda_t == pytest.approx(lambda_t, abs=1e-12)
        assert record.instability == pytest.approx(delta, rel=1e-4)
        target = atsa.lambda_min + (atsa.lambda_max - atsa.lambda_min) * math.exp(-atsa.k * record.instability)
        lambda_t = atsa.alpha * lambda_t + (1 - atsa.alpha) * target
        assert record.lambda_next == pytest.approx(lambda_t, abs=1e-12)
        theta = new


def test_the_operator_is_told_when_lambda_did_not_adapt(finished: Finished) -> None:
    """Five rounds on a dozen images: exp(-k Delta) hardly moves, and the log must not leave that unsaid."""
    stability = [math.exp(-finished.config.atsa.k * record.instability) for record in finished.records]
    assert 1 - min(stability) / max(stability) < 0.05
    assert "ATSA did not adapt" in finished.log


def test_bytes_are_those_of_the_extractor(finished: Finished) -> None:
    expected = 4 * sum(math.prod(shape) for shape in wire_spec(finished.config).values())
    assert finished.records[-1].bytes == dict.fromkeys(SITES, expected)


def test_the_downloaded_extractor_is_torchvisions(finished: Finished) -> None:
    (file,) = finished.results.rglob("extractor.safetensors")
    model = resnet18()
    model.fc = torch.nn.Identity()
    model.load_state_dict(load_file(file), strict=True)
    assert model.eval()(torch.zeros(2, 3, 224, 224)).shape == (2, 512)


def test_tensorboard_shows_the_records_numbers(finished: Finished) -> None:
    (events,) = {file.parent for file in finished.results.rglob("events.out.tfevents.*")}
    shown = EventAccumulator(str(events))
    shown.Reload()
    assert events.parent.name == "tb_events"
    assert events.name not in SITES  # one folder, named as the server calls itself
    for tag, value in numbers_of(finished.records[-1]).items():
        points = [(point.step, point.value) for point in shown.Scalars(tag)]
        assert points[-1] == (ROUNDS - 1, pytest.approx(value)), tag
    assert [point.step for point in shown.Scalars("lambda_t")] == list(range(ROUNDS))


# -- the head ---------------------------------------------------------------------------------------------------------


def slices(tensor: torch.Tensor, count: int = 4, length: int = 48) -> list[bytes]:
    """Pieces of a tensor's bytes, spread over it: frames and chunks cannot cut through all of them."""
    content = tensor.contiguous().numpy().tobytes()
    starts = np.linspace(0, max(0, len(content) - length), count).astype(int)
    return [content[start : start + length] for start in starts]


def found(needles: list[bytes], files: list[Path]) -> set[bytes]:
    """Which needles occur in the files."""
    seen: set[bytes] = set()
    for file in files:
        content = file.read_bytes()
        seen |= {needle for needle in needles if needle in content}
    return seen


def heads(federation: Federation) -> dict[str, torch.Tensor]:
    """Weight matrices of every site's saved private heads. Biases start near zero and repeat: no needles."""
    states = {
        f"{site}/{file.name}/{name}": tensor
        for site in federation.sites
        for file in federation.site_paths(site).state.rglob("round-*.safetensors")
        for name, tensor in load_file(file).items()
    }
    return {name: tensor for name, tensor in states.items() if tensor.dim() == 2}


def test_head_weights_are_on_no_wire_and_in_no_server_file(finished: Finished) -> None:
    received = sorted(finished.frames.glob("*.frames"))
    updates = [
        slices(finished.update(site, number)[0]["layer4.1.conv2.weight"]) for site in HONEST for number in (0, 4)
    ]
    for pieces in updates:  # the tap works: every honest update is in what it heard
        assert len(found(pieces, received)) >= len(pieces) // 2
    private = heads(finished.federation)
    assert len(private) >= 2 * 2 * len(SITES)  # two layers, two rounds, each site
    needles = [piece for tensor in private.values() for piece in slices(tensor)]
    assert len(set(needles)) == len(needles)
    server_files = [path for path in finished.federation.server_kit.rglob("*") if path.is_file()]
    assert any(path.name == "checkpoint.safetensors" for path in server_files)
    assert found(needles, received) == set()
    assert found(needles, server_files + [path for path in finished.results.rglob("*") if path.is_file()]) == set()


def test_heads_are_private_files_of_each_site(finished: Finished) -> None:
    for site in SITES:
        state = finished.federation.site_paths(site).state
        files = list(state.rglob("round-*.safetensors"))
        assert files
        assert all(path.stat().st_mode & 0o077 == 0 for path in [state, *files])
