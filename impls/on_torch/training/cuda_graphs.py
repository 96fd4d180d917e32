"""Training steps and decoding as CUDA graphs: all kernels of a step are launched at once, as users of PyTorch do where
launching them one by one would take longer than running them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import torch


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    """One for all graphs of a device, since libraries take their workspaces once a stream."""
    return torch.cuda.Stream(device)


def captured(step: Callable[[], object], device: torch.device) -> Callable[[], object] | None:
    """What repeats the kernels of `step` with the inputs and outputs that it has now; None where the device is none of
    CUDA's, where `step` waits for it, so that what it launches may depend on numbers, or where there is no room for the
    memory that a graph keeps for itself.

    Call it after `step` has run once, which compiles and sets up what it needs.
    """
    if device.type != "cuda":
        return None
    side, mode = _side(device), torch.cuda.get_sync_debug_mode()
    side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(side), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode")  # that it may miss some
            step()  # which gives libraries their workspaces
            torch.cuda.set_sync_debug_mode("error")
            step()
    except torch.OutOfMemoryError:
        return None
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return None  # it waits
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
