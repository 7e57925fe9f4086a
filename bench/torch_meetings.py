"""Ranks of PyTorch that train by themselves and meet once in a period of steps, over torch.distributed."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
from torch.distributed.algorithms.model_averaging import averagers


class LocalSgd:
    """They take the mean of their parameters, by PyTorch's PeriodicModelAverager. Not in the first `warmup` steps."""

    def __init__(self, parameters, period, warmup=0):
        self.parameters = parameters
        self.averager = averagers.PeriodicModelAverager(period=period, warmup_steps=warmup)
        self.averager.step = 1  # here steps count from 1

    def after_step(self):
        """Gradients are still there: it takes the mean of what has one."""
        self.averager.average_parameters(self.parameters)


class DiLoCo:
    """The outer optimizer is torch.optim.SGD with Nesterov's momentum; its gradient is what a period has changed."""

    def __init__(self, parameters, period, lr=0.7, momentum=0.9):
        self.parameters, self.period, self.steps = parameters, period, 0
        self.outer = torch.cat([p.detach().flatten() for p in parameters])
        self.optimizer = torch.optim.SGD([self.outer], lr=lr, momentum=momentum, nesterov=True)

    @torch.no_grad()
    def after_step(self):
        self.steps += 1
        if self.steps % self.period != 0:
            return
        mean = torch.cat([p.flatten() for p in self.parameters])
        dist.all_reduce(mean)
        self.outer.grad = self.outer - mean.div_(dist.get_world_size())
        self.optimizer.step()
        for p, new in zip(self.parameters, self.outer.split([p.numel() for p in self.parameters])):
            p.copy_(new.view_as(p))


def synchronous_at_first(model, steps):
    """For post-local SGD: gradients are averaged in the first `steps`."""
    alone, _ = dist.new_subgroups(group_size=1)
    ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    state = post_local.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=steps)
    ddp.register_comm_hook(state, post_local.post_localSGD_hook)
    return ddp
