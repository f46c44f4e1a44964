"""The names of DAOS's package for PyTorch."""

from weir.torch import Checkpoint, Dataset, IterableDataset

__all__ = ["Checkpoint", "Dataset", "IterableDataset"]
