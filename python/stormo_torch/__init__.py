"""Stormo under PyTorch: torch.distributed.init_process_group("stormo").

Importing this registers the backend, which is all that most programs need; the C++ part is loaded when the first
group is created. `import torch` imports it by itself where it is installed (stormo_torch_autoload.py).
"""

import torch.distributed

from stormo_torch import _load

if not torch.distributed.is_available():
    raise ImportError("stormo_torch needs a torch that is built with torch.distributed; the one here is not")

# what is loaded when it is first used, and where it is
_FROM = {
    "DistributedDataParallel": "_averaging",
    "average_gradients": "_averaging",
    "arena": "_arena",
    "empty": "_arena",
    "in_arena": "_arena",
    "use_arena": "_arena",
}
__all__ = ["StormoOptions", "flight_records", *_FROM]


def flight_records():
    """The operations of this process that were recorded, as torchfrtrace reads them from a file. They are recorded if
    TORCH_FR_BUFFER_SIZE, the number of operations that are kept, is set when a group is created."""
    records = _load.extension().flight_records()
    if not records:
        raise RuntimeError("stormo_torch: there are no flight records; set TORCH_FR_BUFFER_SIZE=2000 for all ranks")
    return records


def _create_backend(group, options):
    """What torch calls for each group, on its members."""
    return _load.extension().create_backend(group, options)


def __getattr__(name):
    if name == "StormoOptions":
        return _load.extension().StormoOptions
    if name in _FROM:
        import importlib

        return getattr(importlib.import_module(f"stormo_torch.{_FROM[name]}"), name)
    if name == "__version__":
        import importlib.metadata

        return importlib.metadata.version("stormo-torch")
    raise AttributeError(f"module 'stormo_torch' has no attribute '{name}'")


# torch 2.15 records the operations of others by hooks, unless a backend is among those that do it themselves
getattr(torch.distributed.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add("stormo")
torch.distributed.Backend.register_backend("stormo", _create_backend, extended_api=True, devices=["cpu", "cuda"])
