"""Training that goes on when replicas come and go, by torchft's Manager:

    from stormo_torch.torchft import ProcessGroupStormo

    manager = torchft.Manager(pg=ProcessGroupStormo(), ...)
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from stormo_torch import _load


class ProcessGroupStormo(ProcessGroupWrapper):
    """A process group that torchft makes again whenever the members change: each time a new world of Stormo's.

    timeout is that of its operations and of joining. options: stormo_torch.StormoOptions.
    """

    def __init__(self, timeout=timedelta(seconds=60), options=None):
        super().__init__(timeout)
        self._options = options

    def getBackendName(self):
        return "torchft-stormo"

    def _create_pg(self, store, rank, world_size):
        terms = dist.distributed_c10d._DistributedBackendOptions()
        terms.store, terms.group_rank, terms.group_size = store, rank, world_size
        terms.timeout = self._timeout
        custom = dist.ProcessGroup.BackendType.CUSTOM
        group = dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(custom)
        group._register_backend(torch.device("cpu"), custom, _load.extension().create_backend(terms, self._options))
        return group
