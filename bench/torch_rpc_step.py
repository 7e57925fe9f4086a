"""The opponent torch_rpc of `stormo bench async`: a parameter server over torch.distributed.rpc.

Started by `stormo run` with one rank more than there are workers; arguments: RENDEZVOUS_FILE FORM INPUTS_FILE
DESCRIPTION. The last rank is the server, which has the parameters and updates them by torch.optim.SGD under a lock. A
worker makes one call per step, which applies its gradient and returns the new parameters. FORM is what a call has:
"tensors", one for each parameter, or "flat", all in one tensor. Every worker prints one JSON object.
"""
import json
import os
import sys
import threading

import torch
from torch.distributed import rpc

from torch_step import Inputs, make_model
from torch_worker import train


def values_of(model, flat):
    """The memory of the model's parameters, as the tensors of a call."""
    parameters = list(model.parameters())
    if not flat:
        return [p.detach() for p in parameters]
    whole = torch.cat([p.detach().flatten() for p in parameters])
    for p, part in zip(parameters, whole.split([p.numel() for p in parameters])):
        p.data = part.view_as(p)
    return [whole]


def gradients_of(model, flat):
    gradients = [p.grad for p in model.parameters()]
    return [torch.cat([g.flatten() for g in gradients])] if flat else gradients


class Server:
    def __init__(self, values, lr, workers):
        self.values, self.lock = [torch.nn.Parameter(v) for v in values], threading.Lock()
        self.all_ready = threading.Barrier(workers)
        self.optimizer = torch.optim.SGD(self.values, lr=lr, fused=True)

    def push_pull(self, gradients):
        with self.lock:
            for value, gradient in zip(self.values, gradients):
                value.grad = gradient
            self.optimizer.step()
            return [v.detach().clone() for v in self.values]


server = None  # in its process


def push_pull(gradients):
    return server.push_pull(gradients)


def wait_for_all():
    server.all_ready.wait()


def update(model, values):
    new = rpc.rpc_sync("server", push_pull, (gradients_of(model, len(values) == 1),))
    for value, received in zip(values, new):
        value.copy_(received)


def main():
    global server
    file, form, inputs, text = sys.argv[1:]
    d, rank, size = json.loads(text), int(os.environ["STORMO_RANK"]), int(os.environ["STORMO_WORLD_SIZE"])
    os.environ.setdefault("TP_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    torch.set_num_threads(1)
    model = make_model(d)
    batches = Inputs(inputs, d).read(model)
    values = values_of(model, form == "flat")
    serves = rank == size - 1
    if serves:
        server = Server(values, d["optimizer"]["lr"], size - 1)
    rpc.init_rpc("server" if serves else f"worker{rank}", rank=rank, world_size=size,
                 backend=rpc.BackendType.TENSORPIPE,
                 rpc_backend_options=rpc.TensorPipeRpcBackendOptions(num_worker_threads=size, rpc_timeout=0,
                                                                     init_method=f"file://{file}"))
    if not serves:
        rpc.rpc_sync("server", wait_for_all)
        train(model, lambda: update(model, values), batches, d, rank, size - 1)
    rpc.shutdown()


if __name__ == "__main__":
    main()
