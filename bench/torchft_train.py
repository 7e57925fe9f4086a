"""A replica of a job of torchft's, for bench/elastic: the model and the batch of mnist_mlp, data from memory. Or its
lighthouse. A line of JSON for each try of a step.

usage: torchft_train.py lighthouse BIND JOIN_MS
       torchft_train.py replica ID LIGHTHOUSE ADDRESS REPLICAS TIMEOUT_S      0: what torchft takes if it is not told
"""
import datetime
import json
import signal
import sys


def limits(seconds):
    """Of the group, of the Manager."""
    if not seconds:
        return {}, {}
    limit = datetime.timedelta(seconds=seconds)
    return {"timeout": limit}, {"timeout": limit, "quorum_timeout": limit, "connect_timeout": limit}


def replica(number, lighthouse, address, replicas, seconds):
    import torch
    import torch.distributed as dist
    import torchft
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    rule = torch.optim.AdamW(model.parameters(), lr=1e-3)
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    of_group, of_manager = limits(seconds)

    def load(state):
        model.load_state_dict(state["model"])
        rule.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(**of_group), min_replica_size=1, load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": rule.state_dict()},
        replica_id=f"replica_{number}", rank=0, world_size=1, store_addr=address, store_port=store.port,
        lighthouse_addr=lighthouse, hostname=address, **of_manager)
    optimizer = torchft.Optimizer(manager, rule)
    rows = 64 // replicas
    images, labels = torch.randn(4096, 784), torch.randint(10, (4096,))
    while True:
        before = manager.current_step()
        first = before * rows % (4096 - rows)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[first:first + rows]), labels[first:first + rows]).backward()
        # as torchft's DistributedDataParallel; whose hook of 0.2.0 ends the replica when a reduction fails
        gradients = [p.grad for p in model.parameters()]
        flat = torch.cat([g.flatten() for g in gradients])
        manager.allreduce(flat).wait()
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
            gradient.copy_(mean.view_as(gradient))
        optimizer.step()
        now = manager.current_step()
        print(json.dumps({"step": now, "committed": now > before, "ranks": manager.num_participants()}), flush=True)


def main():
    kind, *words = sys.argv[1:]
    if kind == "lighthouse":
        from torchft.coordination import LighthouseServer
        server = LighthouseServer(bind=words[0], min_replicas=1, join_timeout_ms=int(words[1]))
        while server.address():  # until it is killed
            signal.pause()
    else:
        number, lighthouse, address, replicas, seconds = words
        replica(number, lighthouse, address, int(replicas), float(seconds))


if __name__ == "__main__":
    main()
