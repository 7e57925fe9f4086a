"""Averages of gradients that need no wrapper, or PyTorch's own with Stormo's reduction."""

import contextlib
import weakref

import torch
from torch.nn.parallel import DistributedDataParallel as _TorchDistributedDataParallel

from stormo_torch import _load
from stormo_torch._arena import arena, backend_of, rest_of_backward_in_arena


class DistributedDataParallel(_TorchDistributedDataParallel):
    """torch.nn.parallel.DistributedDataParallel with its buckets in the Arena, averaged in place."""

    def __init__(self, module, *args, process_group=None, device_mesh=None, **kwargs):
        group = device_mesh.get_group() if device_mesh is not None else process_group
        with arena(group):  # of the buckets
            super().__init__(module, *args, process_group=process_group, device_mesh=device_mesh, **kwargs)
        self._register_average_hook()

    def __setstate__(self, state):
        with arena():  # PyTorch copies those of the default group only
            super().__setstate__(state)
        self._has_rebuilt_buckets = False
        self._register_average_hook()

    def _register_average_hook(self):
        _load.extension().register_average_hook(self.reducer, backend_of(self.process_group))

    def _pre_forward(self, *inputs, **kwargs):
        if self._has_rebuilt_buckets:
            return super()._pre_forward(*inputs, **kwargs)
        with arena(self.process_group):  # the first step makes others, in the order in which gradients came
            return super()._pre_forward(*inputs, **kwargs)


def _form(module):
    """What average_gradients() was told of: the parameters, and which of them are trained."""
    return [(id(p), p.requires_grad, p.dtype, p.shape) for p in module.parameters()]


class AveragedGradients:
    """What average_gradients() returns: gradients are averaged as long as it lives, or until remove()."""

    def __init__(self, module, backend, averager):
        self._averager = averager
        own, form = weakref.ref(module), _form(module)
        into_arena = rest_of_backward_in_arena(backend)

        def watch(module, args, output):  # knows nothing of self, which must end when nobody keeps it
            if module is not own():
                return  # a copy has the hook, too
            if _form(module) != form:
                raise RuntimeError(
                    "stormo_torch: parameters of the module were added, replaced, converted, frozen or thawed since "
                    "average_gradients(); call remove() of what it has returned, and average_gradients() again"
                )
            for tensor in torch.utils._pytree.tree_leaves(output):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    tensor.register_hook(into_arena)

        self._hook = module.register_forward_hook(watch)

    def remove(self):
        """From now on gradients stay local. Needed before another call for the same module."""
        self._hook.remove()
        self._averager = None

    def __del__(self):
        self.remove()

    @contextlib.contextmanager
    def no_sync(self):
        """Backward passes inside of it leave gradients local; the next one after it averages their sum."""
        self._averager.begin_no_sync()
        try:
            yield
        finally:
            self._averager.end_no_sync()

    def set_weight(self, weight):
        """What this rank's gradients count for: usually the number of samples of its batch. 1 at first."""
        self._averager.set_weight(weight)

    def reduce(self):
        """The average alone, without a backward pass: for a rank that has no more samples (after set_weight(0))."""
        self._averager.reduce_gradients()

    def broadcast_buffers(self):
        """Gives every rank rank 0's buffers, such as running statistics."""
        self._averager.broadcast_buffers()

    def __str__(self):
        return self._averager.overlap()


def average_gradients(module, *, group=None, bucket_bytes=None, bfloat16=False):
    """Behind a loop of one's own: when loss.backward() returns, the gradients are the average over all ranks.

    All ranks get the parameters and buffers of rank 0. Keep what is returned. bucket_bytes: gradients are reduced in
    buckets of this size during backward, 0: at its end; None: the first steps measure what is faster. bfloat16:
    gradients travel with half of the bytes. Everything must be equal on all ranks. Gradients of an Embedding or
    EmbeddingBag with sparse=True stay sparse: their rows travel.
    """
    extension, backend = _load.extension(), backend_of(group)
    named = lambda items: [(name.replace(".", "/"), tensor) for name, tensor in items]
    parameters = named(module.named_parameters())
    tables = {id(m.weight) for m in module.modules()
              if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and m.sparse}
    averager = extension.GradientAverager(backend, parameters, named(module.named_buffers()),
                                          [name for name, p in parameters if id(p) in tables], bucket_bytes, bfloat16)
    return AveragedGradients(module, backend, averager)
