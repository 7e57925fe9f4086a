"""Runs that move between PyTorch and Stormo by folders of torch.distributed.checkpoint, with PyTorch's own FSDP2 on
four processes over gloo: the steps after each move are those of a run that stayed."""

import os
import pickle
import shutil
import unittest
from collections import OrderedDict

from small_data import safetensors
from train_cli import TrainTest, main

try:
    import numpy  # noqa: F401  # what DCP needs, too
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    from torch import nn
    from torch.distributed.checkpoint._extension import StreamTransformExtension
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn import functional
except ImportError:
    torch = None

RANKS = 4
SAMPLES = 8
RECIPE = """schema_version = 1
name = "moved"
[model]
kind = "mlp"
sizes = [6, 5, 3]
[data]
kind = "safetensors"
path = "."
train = "t.safetensors"
[train]
steps = 3
global_batch = 8
[checkpoint]
directory = "run"
[optimizer]
"""
OPTIMIZERS = {
    "adamw": 'kind = "adamw"\nlr = 0.02\nweight_decay = 0.1\n',
    "sgd": 'kind = "sgd"\nlr = 0.1\nmomentum = 0.9\n',
    "rmsprop": 'kind = "rmsprop"\nlr = 0.01\nmomentum = 0.5\nepsilon = 1e-3\n',
    "adagrad": 'kind = "adagrad"\nlr = 0.1\nepsilon = 1e-3\n',
}


def samples():
    """Each batch is all of them, so their order does not count."""
    inputs = [[((7 * i + 3 * j) % 11) / 5 - 1 for j in range(6)] for i in range(SAMPLES)]
    return inputs, [i % 3 for i in range(SAMPLES)]


def network():
    """The mlp of the recipe, as anybody would write it in Python."""

    torch.manual_seed(1)
    net = nn.Sequential()
    net.add_module("layer0", nn.Sequential(OrderedDict(linear=nn.Linear(6, 5), activation=nn.ReLU())))
    net.add_module("layer1", nn.Sequential(OrderedDict(linear=nn.Linear(5, 3))))
    return net


def optimizer_of(kind, net):
    if kind == "adamw":
        return torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.1)
    if kind == "sgd":
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    if kind == "rmsprop":
        return torch.optim.RMSprop(net.parameters(), lr=0.01, momentum=0.5, eps=1e-3)
    return torch.optim.Adagrad(net.parameters(), lr=0.1, eps=1e-3)


def train(net, optimizer, steps):
    inputs, targets = samples()
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(net(torch.tensor(inputs)), torch.tensor(targets)).backward()
        optimizer.step()


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def values_of(net, optimizer):
    """By the names in an exported file."""
    model, optim = get_state_dict(net, optimizer)
    out = {name: whole(value) for name, value in model.items()}
    for name, slots in optim["state"].items():
        out |= {f"optimizer.{slot}.{name}": whole(value) for slot, value in slots.items()}
    return {name: value.detach().clone() for name, value in out.items()}


def sharded(kind):
    net = network()
    mesh = init_device_mesh("cpu", (RANKS,))
    fully_shard(net.layer0, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, optimizer_of(kind, net)


def save(folder, rank):
    """Two steps, a folder in each layout, and what three steps more come to."""
    for kind in OPTIMIZERS:
        net, optimizer = sharded(kind)
        train(net, optimizer, 2)
        model, optim = get_state_dict(net, optimizer)
        dcp.save({"model": model, "optim": optim, "epoch": 7}, checkpoint_id=folder / f"{kind}-named")
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
        dcp.save(state, checkpoint_id=folder / f"{kind}-numbered")
        model, optim = get_state_dict(net, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
        dcp.save({**model, **optim}, checkpoint_id=folder / f"{kind}-flat")
        dcp.save(get_model_state_dict(net), checkpoint_id=folder / f"{kind}-weights")
        train(net, optimizer, 3)
        values = values_of(net, optimizer)
        if rank == 0:
            torch.save(values, folder / f"{kind}.pt")


def load(folder, rank):
    """What Stormo has exported, by PyTorch's own reader into shards, and what three steps more come to."""
    for kind in OPTIMIZERS:
        net, optimizer = sharded(kind)
        train(net, optimizer, 1)
        model, optim = get_state_dict(net, optimizer)
        state = {"model": model, "optim": optim}
        dcp.load(state, checkpoint_id=folder / f"{kind}-exported")
        set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        read = values_of(net, optimizer)
        group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        train(net, optimizer, 3)
        values = values_of(net, optimizer)
        if rank == 0:
            torch.save((read, group, values), folder / f"{kind}-loaded.pt")


def rank_main(rank, work, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{work.__name__}", rank=rank, world_size=RANKS)
    try:
        work(folder, rank)
    finally:
        dist.destroy_process_group()


@unittest.skipIf(torch is None, "set-up: this Python has no torch, numpy and safetensors")
class DcpTest(TrainTest):
    def setUp(self):
        super().setUp()
        (self.folder / "t.safetensors").write_bytes(safetensors(*samples()))
        for kind, text in OPTIMIZERS.items():
            (self.folder / f"{kind}.toml").write_text(RECIPE + text)

    def python(self, work):
        torch.multiprocessing.start_processes(rank_main, (work, self.folder), RANKS, start_method="fork")

    def checkpoint(self, *arguments):
        done = self.stormo("checkpoint", *arguments)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        return done

    def exported(self, run):
        path = self.folder / f"{run}.safetensors"
        path.unlink(missing_ok=True)
        self.checkpoint("export", run, path.name, "--optimizer")
        return load_file(path)

    def assert_close(self, got, wanted, kind):
        if kind != "adamw":  # rules that need no count of updates have none here
            wanted = {name: value for name, value in wanted.items() if not name.startswith("optimizer.step.")}
        self.assertEqual(set(got), set(wanted), kind)
        for name, value in wanted.items():
            torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{kind} {n}: {m}")

    def test_a_run_moves_to_stormo_and_back(self):
        self.python(save)
        for kind in OPTIMIZERS:
            wanted = torch.load(self.folder / f"{kind}.pt")
            for layout in ("named", "numbered", "flat"):
                run = f"{kind}-{layout}-run"
                done = self.checkpoint("import", f"{kind}-{layout}", run)
                self.assertEqual(done.stderr, "stormo: not taken: epoch\n" if layout == "named" else "")
                self.lines(f"{kind}.toml", "-n", "2", "--checkpoint", run, "--resume")
                self.assert_close(self.exported(run), wanted, kind)
            self.checkpoint("export", f"{kind}-named-run", f"{kind}-exported", "--format", "dcp", "--optimizer")
        self.python(load)
        for kind in OPTIMIZERS:
            read, group, values = torch.load(self.folder / f"{kind}-loaded.pt")
            for name, value in self.exported(f"{kind}-named-run").items():
                self.assertTrue(torch.equal(read[name], value), f"{kind} {name}")
            fresh = optimizer_of(kind, network()).param_groups[0]
            self.assertEqual({**fresh, "params": None}, {**group, "params": None}, kind)
            self.lines(f"{kind}.toml", "-n", "2", "--checkpoint", f"{kind}-named-run", "--resume", "steps=6")
            self.assert_close(self.exported(f"{kind}-named-run"), values, kind)

        # Without the optimizer's state the same weights go elsewhere: what is compared above depends on it.
        self.checkpoint("import", "adamw-weights", "anew")
        self.lines("adamw.toml", "-n", "2", "--checkpoint", "anew", "--resume")
        anew, moved = (state["layer0.linear.weight"]
                       for state in (self.exported("anew"), torch.load(self.folder / "adamw.pt")))
        self.assertFalse(torch.allclose(anew, moved, rtol=1e-3, atol=1e-4))

    def save_model(self, **model):
        """By one process."""
        shutil.rmtree(self.folder / "saved", ignore_errors=True)
        dcp.save({"model": model}, checkpoint_id=self.folder / "saved", no_dist=True)

    def test_every_type_and_order_of_elements(self):
        types = ("bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 "
                 "float8_e4m3fn float8_e5m2 complex64")
        model = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in types.split()}
        model |= {"transposed": torch.arange(6.0).reshape(2, 3).t(), "part": torch.arange(10)[3:7],
                  "channels_last": torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last),
                  "one": torch.tensor(2.5), "empty": torch.empty(0, 3)}
        for checksums in (True, False):
            torch.serialization.set_crc32_options(checksums)
            self.addCleanup(torch.serialization.set_crc32_options, True)
            self.save_model(**model)
            self.checkpoint("import", "saved", f"run{checksums}")
            self.checkpoint("export", f"run{checksums}", f"out{checksums}", "--format", "dcp")
            read = {"model": {name: torch.zeros_like(value) for name, value in model.items()}}
            dcp.load(read, checkpoint_id=self.folder / f"out{checksums}", no_dist=True)
            for name, value in model.items():
                self.assertEqual(read["model"][name].dtype, value.dtype)
                self.assertEqual(read["model"][name].tolist(), value.tolist(), name)
        mode = os.stat(self.folder / "outTrue").st_mode
        self.assertEqual((mode & 0o444) >> 2, mode & 0o111)  # who can see a folder can enter it

    def assert_refused(self, *parts):
        done = self.stormo("checkpoint", "import", "saved", "new")
        self.assertIn(done.returncode, (1, 2), done.stderr)
        self.assertFalse((self.folder / "new").exists())
        for part in parts:
            self.assertIn(part, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_what_no_checkpoint_holds_is_named(self):
        self.save_model(w=torch.zeros(2, dtype=torch.complex128))
        self.assert_refused("'model.w'", "complex128")
        self.save_model(w=torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8))
        self.assert_refused("'model.w'", "qint8")
        self.save_model(w=torch.zeros(2, dtype=torch.complex64).conj())
        self.assert_refused("'model.w' in __0_0.distcp", "a conjugate", "resolve_conj()")
        self.save_model(w=torch.zeros(2))
        (self.folder / "saved/__0_0.distcp").unlink()
        self.assert_refused("saved/__0_0.distcp is missing")
        (self.folder / "saved/.metadata").unlink()
        self.assert_refused("no file .metadata")

    def test_extensions_are_refused(self):
        class Same(StreamTransformExtension):
            @staticmethod
            def registry_name():
                return "same"

            @staticmethod
            def from_descriptor(version):
                return Same()

            def get_descriptor(self):
                return "same/1"

            def transform_to(self, output):
                return output

            def transform_from(self, input):
                return input

        writer = dcp.FileSystemWriter(self.folder / "saved", _extensions=[Same()])
        dcp.save({"model": {"w": torch.zeros(2)}}, storage_writer=writer, no_dist=True)
        self.assert_refused("'model.w'", "an extension ('same/1')")

    def test_no_pickle_is_run(self):
        class Ruin:
            def __reduce__(self):
                return os.mkdir, (str(mark),)

        mark = self.folder / "ruined"
        self.save_model(w=torch.zeros(2))
        path = self.folder / "saved/.metadata"
        good = path.read_bytes()
        path.write_bytes(pickle.dumps(Ruin()))
        self.assert_refused("something else than torch.distributed.checkpoint's")
        metadata = pickle.loads(good)
        metadata.state_dict_metadata["model.v"] = Ruin()
        path.write_bytes(pickle.dumps(metadata))
        self.assert_refused("'model.v'", "posix.mkdir")
        self.assertFalse(mark.exists())


if __name__ == "__main__":
    main()
