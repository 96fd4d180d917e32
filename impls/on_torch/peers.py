"""The base of losses that are CUDA kernels of another package."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from vocabench.impls import peer_packages
from vocabench.impls.errors import Unsupported
from vocabench.impls.on_torch.summed_loss import SummedSoftmax
from vocabench.impls.spec import LayerSpec


class KernelSoftmax(SummedSoftmax):
    """Full softmax whose summed loss is a kernel of another package.

    Parameters: `weight` (V, D), `bias` (V,), as in full softmax.

    Attributes:
        package: Import name of the package.
        install: Argument of `pip install` for it.
        distribution: Name of the package on the index, if it is another.
        dtypes: Precisions that the kernel supports.

    Raises:
        Unsupported: The package is not installed or the kernel does not support the dtype; when the loss is computed,
            also if the device is not a CUDA device.
    """

    package: ClassVar[str]
    install: ClassVar[str]
    distribution: ClassVar[str] = ""
    dtypes: ClassVar[tuple[str, ...]]

    def __init__(self, spec: LayerSpec) -> None:
        peer_packages.require(spec.method, self.package, self.install, device="a CUDA device")
        if spec.dtype not in self.dtypes:
            raise Unsupported(f"{spec.method} in {spec.dtype}: allowed: {', '.join(self.dtypes)}")
        super().__init__(spec)

    @abstractmethod
    def kernel(self, hidden_ND: Tensor, targets_N: Tensor, ignore_index: int) -> Tensor:
        """Return `total`, on a device that has the kernel."""

    def total(self, hidden_ND: Tensor, targets_N: Tensor, ignore_index: int) -> Tensor:
        if not runs_on(hidden_ND):
            raise Unsupported(f"{self.spec.method} on {hidden_ND.device}: allowed: a CUDA device")
        return self.kernel(hidden_ND, targets_N, ignore_index)

    def formulation(self) -> str:
        return peer_packages.versioned(self.distribution or self.package)


def runs_on(tensor: Tensor) -> bool:
    """Return whether the kernels run on the tensor's device."""
    return tensor.is_cuda
