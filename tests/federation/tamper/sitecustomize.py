"""A hostile or wire-tapped machine: Python loads this file by itself where its folder is on PYTHONPATH.

``TAMPER_FRAMES=DIR``    the server's processes store every frame that reaches them from the network, before it is read
``TAMPER_UPDATES=DIR``   each site stores what StrictEgress lets out, as ``<site>-<round>.safetensors``
``TAMPER_POISON=SITE``   that site changes its update after StrictEgress, and takes away the guard behind it, as an
                         attacker who owns the machine would:
                         round 0 NaN, 1 infinity, 2 a head's tensor, 3 zero samples, 4 honest
``TAMPER_LEAK=SITE,...`` these sites try every other way out, see ``leaks.py``
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

NODE = os.environ.get("FEDAD_NODE", "")


def record_frames(module: Any) -> None:
    inner = module.ConnManager.process_frame

    def process_frame(self: Any, connection: Any, frame: Any) -> None:
        with open(os.path.join(os.environ["TAMPER_FRAMES"], f"{os.getpid()}.frames"), "ab") as file:
            file.write(bytes(frame))
        inner(self, connection, frame)

    module.ConnManager.process_frame = process_frame


def tamper_with_results(module: Any) -> None:
    inner = module.StrictEgress.process

    def process(self: Any, shareable: Any, fl_ctx: Any) -> Any:
        result = inner(self, shareable, fl_ctx)
        if "DXO" in result:
            if folder := os.environ.get("TAMPER_UPDATES"):
                from safetensors.torch import save_file

                meta = result["DXO"]["meta"]
                path = os.path.join(folder, f"{NODE}-{meta['round']}.safetensors")
                save_file(result["DXO"]["data"], path, {"n_samples": str(meta["n_samples"])})
            if os.environ.get("TAMPER_POISON") == NODE:
                poison(result["DXO"])
        return result

    module.StrictEgress.process = process


def poison(dxo: dict[str, Any]) -> None:
    import torch

    weights, meta = dxo["data"], dxo["meta"]
    if meta["round"] == 0:
        weights["conv1.weight"][0, 0, 0, 0] = float("nan")
    elif meta["round"] == 1:
        weights["bn1.bias"][0] = float("inf")
    elif meta["round"] == 2:
        weights["head.0.weight"] = torch.zeros(512, 512)
    elif meta["round"] == 3:
        meta["n_samples"] = 0


def take_away_the_guard(module: Any) -> None:
    module.JobChannels._result = lambda self, message: None


class PatchOnImport(importlib.abc.MetaPathFinder):
    """Lets the usual finders find a module, and changes it right after it was loaded."""

    def __init__(self, patches: dict[str, Callable[[Any], None]]) -> None:
        self.patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self.patches.pop(name, None)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if patch else None
        if patch is None or spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


wanted: dict[str, Callable[[Any], None]] = {}
if NODE == "server" and "TAMPER_FRAMES" in os.environ:
    wanted["nvflare.fuel.f3.sfm.conn_manager"] = record_frames
if NODE not in ("", "server") and {"TAMPER_UPDATES", "TAMPER_POISON"} & os.environ.keys():
    wanted["fedad_components.flare.egress"] = tamper_with_results
if NODE and os.environ.get("TAMPER_POISON") == NODE:
    wanted["fedad_components.flare.channels"] = take_away_the_guard
if NODE and NODE in os.environ.get("TAMPER_LEAK", "").split(","):
    import leaks

    wanted |= leaks.PATCHES
if wanted:
    sys.meta_path.insert(0, PatchOnImport(wanted))
