"""Training steps and decoding as CUDA graphs, which launch all kernels of a step at once.

Users of PyTorch capture graphs where launching kernels one by one would take longer than running them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import torch


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all graphs of a device; libraries allocate a workspace for each stream."""
    return torch.cuda.Stream(device)


def captured(step: Callable[[], object], device: torch.device) -> Callable[[], object] | None:
    """Return a function that replays the kernels of `step` with its current inputs and outputs.

    Returns None if the device is not a CUDA device, if `step` synchronizes, so that its kernels may depend on values,
    or if there is not enough memory for a graph. Call it after `step` has run once, which compiles its kernels.
    """
    if device.type != "cuda":
        return None
    side, mode = _side(device), torch.cuda.get_sync_debug_mode()
    side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(side), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "Synchronization debug mode"
            )  # it says that some synchronizations may be missed
            step()  # lets libraries allocate their workspaces
            torch.cuda.set_sync_debug_mode("error")
            step()
    except torch.OutOfMemoryError:
        return None
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return None
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side):
            step()
    except torch.OutOfMemoryError:
        return None
    return graph.replay
