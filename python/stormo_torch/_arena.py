"""Memory that the ranks of a host share (the Arena). Tensors in it are reduced and read in place.

A child of a fork shares this memory with its parent: what it writes into a tensor there, the parent sees. Workers of a
DataLoader are such children. So only what is asked for goes there.
"""

import contextlib
import warnings
import weakref

import torch
import torch.distributed as dist

from stormo_torch import _load


def backend_of(group=None):
    """The backend stormo of a process group; None: the default one."""
    group = dist.group.WORLD if group is None else group
    if group is None:
        raise RuntimeError("stormo_torch: there is no process group; call init_process_group('stormo') first")
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
    if not isinstance(backend, _load.extension().StormoBackend):
        raise ValueError(
            f"stormo_torch: the group's backend for CPU tensors is {dist.get_backend(group)}; use "
            "init_process_group('stormo'), or 'cpu:stormo,cuda:nccl'"
        )
    return backend


@contextlib.contextmanager
def arena(group=None):
    """Large tensors (64 KiB and more) that this thread makes inside of it are in the Arena."""
    scope = _load.extension().ArenaScope(backend_of(group))
    scope.open()
    try:
        yield
    finally:
        scope.close()


def empty(*size, dtype=None, group=None, requires_grad=False):
    """As torch.empty, in the Arena if it has 64 KiB or more."""
    with arena(group):
        return torch.empty(*size, dtype=dtype, requires_grad=requires_grad)


_backwards = weakref.WeakValueDictionary()  # passes of autograd that have a scope


def rest_of_backward_in_arena(backend):
    """A hook of tensors: from there on a backward pass makes its large tensors in the Arena."""

    def enter(gradient):
        backward = torch._C._current_graph_task_id()
        if backward in _backwards:
            return
        _backwards[backward] = scope = _load.extension().ArenaScope(backend)
        scope.open()
        # autograd calls this at the end; a pass that raises drops it, and the scope with it
        torch.autograd.Variable._execution_engine.queue_callback(scope.close)

    return enter


def use_arena(group=None):
    """From now on all large CPU tensors of this process are made in the Arena."""
    warnings.warn(
        "stormo_torch.use_arena(): tensors of 64 KiB and more are now in memory that forked children share with this "
        "process. A DataLoader worker (or any other fork) that writes into such a tensor changes it here. Start "
        "workers by spawn (multiprocessing_context='spawn'), or use stormo_torch.arena() where it matters",
        stacklevel=2,
    )
    _load.extension().use_arena(backend_of(group))


def in_arena(tensor, group=None):
    """Whether the tensor's memory is in the Arena."""
    return _load.extension().in_arena(backend_of(group), tensor)
