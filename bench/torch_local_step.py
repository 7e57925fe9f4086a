"""The opponents of `stormo bench async` that meet now and then: local SGD and DiLoCo of PyTorch over Gloo.

Started by `stormo run`; arguments: RENDEZVOUS_FILE NAME INPUTS_FILE DESCRIPTION. NAME is pytorch_local_sgd or
pytorch_diloco. The inner optimizer is torch.optim.SGD, as that of all others. Every worker prints one JSON object.
"""
import json
import os
import sys

import torch
import torch.distributed as dist

from torch_meetings import DiLoCo, LocalSgd
from torch_step import Inputs, make_model
from torch_worker import train

MEETINGS = {"pytorch_local_sgd": LocalSgd, "pytorch_diloco": DiLoCo}


def main():
    file, name, inputs, text = sys.argv[1:]
    d, rank, size = json.loads(text), int(os.environ["STORMO_RANK"]), int(os.environ["STORMO_WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    model = make_model(d)
    batches = Inputs(inputs, d).read(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=d["optimizer"]["lr"], fused=True)
    meetings = MEETINGS[name](list(model.parameters()), d["period"])

    def update():
        optimizer.step()
        meetings.after_step()

    dist.barrier()
    train(model, update, batches, d, rank, size)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
