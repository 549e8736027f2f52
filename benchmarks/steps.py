"""What the benchmarks of a training step share: the real step, its inputs, clocks, and the frame of the program."""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from fedad_components.fedsd.model import build_extractor, build_head, build_projection  # noqa: E402
from fedad_components.fedsd.teacher import Teacher  # noqa: E402
from fedad_components.fedsd.trainer import Student, choose_device  # noqa: E402

JOB_CONFIG = REPOSITORY / "jobs" / "fedad_job" / "app" / "config" / "config_fed_client.json"
LAMBDA_T = 0.5
WARM_UP = 2


def namespace(value: Any) -> Any:
    """JSON objects as attribute objects."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: namespace(item) for key, item in value.items()})
    return value


def default_config() -> Any:
    """The one copy of the defaults: from the configuration's classes, or from the job that was exported from them."""
    try:
        from fedad_components.config import FedADConfig
    except ModuleNotFoundError:
        executors = json.loads(JOB_CONFIG.read_text(encoding="utf-8"))["executors"]
        return namespace(executors[0]["executor"]["args"]["config"])
    return namespace(FedADConfig().to_json())


def make_student(method: str, config: Any, device: torch.device) -> Student:
    """The student of one method, ready to step."""
    config = copy.deepcopy(config)
    extractor = build_extractor(config.model).to(device).to(memory_format=torch.channels_last)
    head = build_head(config.seed, "benchmark").to(device)
    if method == "simclr":
        config.loss.gamma = 0.0
        return Student(extractor, head, None, config, device)
    teacher = Teacher(extractor, build_projection(config.seed), config.training, device)
    return Student(extractor, head, teacher, config, device)


def synchronised_time(device: torch.device) -> float:
    """Seconds, after all work queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def random_images(config: Any, batch_size: int, device: torch.device) -> torch.Tensor:
    """``(N, S, S, 3)`` uint8; the cost does not depend on the content."""
    side = round(config.model.image_size * 8 / 7)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (batch_size, side, side, 3), dtype=torch.uint8, generator=generator).to(device)


def random_views(config: Any, batch_size: int, device: torch.device) -> torch.Tensor:
    """``(2N, 3, P, P)``, in the views' layout."""
    side = config.model.image_size
    return torch.randn(2 * batch_size, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)


def peak_bytes(step: Callable[[], Any], device: torch.device) -> int:
    """Bytes at the peak of two steps (the first creates the optimiser's state).

    CUDA: the allocator's own count. CPU: the largest resident set of this process, which must be a fresh one, since
    that number never falls; it includes the interpreter and PyTorch, as the memory that a site has to have does.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(2):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result, from a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def step_parser(description: str | None, image_sizes: list[int], repeats_on_cpu: int) -> argparse.ArgumentParser:
    """The options that every benchmark of a step has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image-size", type=int, nargs="+", default=image_sizes, help="sides of a view in pixels")
    parser.add_argument("--repeats", type=int, help=f"timed pairs of steps (CPU: {repeats_on_cpu}, CUDA: 30)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: PyTorch's choice")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    parser.set_defaults(repeats_on_cpu=repeats_on_cpu)
    return parser


def start(arguments: argparse.Namespace) -> tuple[torch.device, int]:
    """Device and number of timed pairs; prints what is measured on."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = choose_device(arguments.device)
    print(f"{device_name(device)}; torch {torch.__version__}")
    return device, arguments.repeats or (30 if device.type == "cuda" else arguments.repeats_on_cpu)


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {torch.get_num_threads()} threads"


def write_json(path: Path | None, device: torch.device, rows: list[dict[str, Any]]) -> None:
    """The table's rows with where they were measured, if a file is asked for."""
    if path:
        content = {"device": device_name(device), "torch": torch.__version__, "rows": rows}
        path.write_text(json.dumps(content, indent=2) + "\n")
