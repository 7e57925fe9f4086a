"""Stormo in Gloo's place, for tests that ask for "gloo" by name."""

import threading

import torch.distributed as dist
from torch.distributed import distributed_c10d

from stormo_torch import _load

_Gloo = distributed_c10d.ProcessGroupGloo
_new_process_group_helper = distributed_c10d._new_process_group_helper
_creating = threading.local()  # .group: name and global ranks of the group that this thread creates


def as_gloo():
    """From now on groups with the backend "gloo" are Stormo's, in this process."""
    distributed_c10d.ProcessGroupGloo = dist.ProcessGroupGloo = StormoAsGloo
    distributed_c10d._new_process_group_helper = _remember_group


def _remember_group(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *more, **named):
    # torch tells Gloo the name of a group only when the group is there
    _creating.group = group_name, global_ranks_in_group
    made = _new_process_group_helper(
        group_size, group_rank, global_ranks_in_group, backend, store, group_name, *more, **named
    )
    if isinstance(made[0], dist.ProcessGroup):
        _not_gloo_in_cpp(made[0])
    return made


def _not_gloo_in_cpp(group):
    """DDP's logger casts what has Gloo's type in C++ to Gloo's class, and would read past the end of Stormo's."""
    custom = dist.ProcessGroup.BackendType.CUSTOM
    for device in group._device_types:
        backend = group._get_backend(device)
        if isinstance(backend, _load.extension().StormoBackend):
            group._register_backend(device, custom, backend)
            group._set_default_backend(custom)


class _LooksLikeGloo(type):
    def __instancecheck__(cls, instance):
        return isinstance(instance, (_Gloo, _load.extension().StormoBackend))

    def __getattr__(cls, name):  # Options, create_device, ...
        return getattr(_Gloo, name)


class StormoAsGloo(metaclass=_LooksLikeGloo):
    """Makes Stormo's backend where torch, or a test, makes a ProcessGroupGloo."""

    def __new__(cls, store, rank, size, timeout=None):
        if not isinstance(timeout, (type(None), type(distributed_c10d.default_pg_timeout))):
            return _Gloo(store, rank, size, timeout)  # options: a test of Gloo itself
        group = distributed_c10d._DistributedBackendOptions()
        group.store, group.group_rank, group.group_size = store, rank, size
        group.timeout = timeout or distributed_c10d.default_pg_timeout
        group.group_id, group.global_ranks_in_group = getattr(_creating, "group", ("alone", []))
        # TORCH_DISTRIBUTED_DEBUG=DETAIL makes a second one beside it
        _creating.group = group.group_id + ":helper", group.global_ranks_in_group
        stormo = _load.extension()
        stormo.set_profiled_name("gloo")
        backend = stormo.create_backend(group, None)
        _give_gloo_attributes(type(backend))
        return backend


class _Options:
    """Takes what torch writes into Gloo's options when the group is there."""


def _give_gloo_attributes(backend):
    if not hasattr(backend, "_set_default_timeout"):
        backend.options = property(lambda self: _Options())
        backend._set_default_timeout = backend.set_timeout
