"""The way to PyTorch and back that docs/checkpoints.md promises, with a model that has BatchNorm."""

import json
import pathlib
import struct
import unittest

from train_cli import TrainTest, main

try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch import nn
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.nn import functional
except ImportError:
    torch = None

RECIPE = """schema_version = 1
name = "residual"
[model]
kind = "resnet20"
[train]
steps = 3
global_batch = 8
log_every = 1
[optimizer]
lr = 0.01
[checkpoint]
directory = "run"
"""


def residual_network():
    """stormo/model/resnet20.h, as anybody would write it in Python."""

    def conv(a, b, stride=1):
        return nn.Conv2d(a, b, 3, stride, 1, bias=False)

    class Stem(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = conv(1, 16), nn.BatchNorm2d(16)

        def forward(self, x):
            return self.norm(self.conv(x)).relu()

    class Block(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.added, self.stride = b - a, 2 if b > a else 1
            self.conv1, self.norm1 = conv(a, b, self.stride), nn.BatchNorm2d(b)
            self.conv2, self.norm2 = conv(b, b), nn.BatchNorm2d(b)

        def forward(self, x):
            y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
            x = x[:, :, :: self.stride, :: self.stride]
            side = self.added // 2
            return (y + functional.pad(x, (0, 0, 0, 0, side, self.added - side))).relu()

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, x):
            return self.linear(x.mean((2, 3)))

    net, channels = nn.Sequential(), 16
    net.add_module("stem", Stem())
    for i in range(9):
        net.add_module(f"block{i}", Block(channels, 16 << (i // 3)))
        channels = 16 << (i // 3)
    net.add_module("head", Head())
    return net


def held_out(folder):
    """The test images and labels as the model sees them."""
    data = pathlib.Path(folder) / "data" / "mnist"
    images = (data / "t10k-images-idx3-ubyte").read_bytes()
    (count,) = struct.unpack_from(">I", images, 4)
    pixels = torch.frombuffer(bytearray(images[16:]), dtype=torch.uint8).reshape(count, 1, 28, 28)
    labels = torch.frombuffer(bytearray((data / "t10k-labels-idx1-ubyte").read_bytes()[8:]), dtype=torch.uint8)
    return (pixels.double() / 255 - 0.1307) / 0.3081, labels.long()


@unittest.skipIf(torch is None, "set-up: this Python has no torch and safetensors")
class TorchTest(TrainTest):
    def setUp(self):
        super().setUp()
        (self.folder / "residual.toml").write_text(RECIPE)

    def program(self, *arguments):
        done = self.stormo(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_batch_norm_goes_to_torch_and_back(self):
        lines = self.lines("residual.toml", "-n", "2", "precision=float64")
        self.program("checkpoint", "export", "run", "model.safetensors")
        net = residual_network().double()
        net.load_state_dict(load_file(self.folder / "model.safetensors"), strict=True)
        self.assertEqual(net.stem.norm.num_batches_tracked.dtype, torch.int64)
        self.assertEqual(net.stem.norm.num_batches_tracked.item(), 3)
        net.eval()
        images, labels = held_out(self.folder)
        evaluated = [line for line in lines if line["event"] == "eval"][-1]
        with torch.no_grad():
            loss = functional.cross_entropy(net(images), labels).item()
        self.assertAlmostEqual(loss, evaluated["loss"], delta=1e-9 * abs(loss))

        # A pass of PyTorch's own, and back: Stormo goes on from its statistics and counters.
        net.train()
        net(images[:8])
        net.eval()
        save_file(net.state_dict(), self.folder / "python.safetensors")
        self.program("checkpoint", "import", "python.safetensors", "new")
        shown = json.loads(self.program("checkpoint", "inspect", "new", "--json"))
        self.assertEqual({t["dtype"] for t in shown["tensors"] if t["name"].endswith("tracked")}, {"I64"})
        with torch.no_grad():
            wanted = functional.cross_entropy(net(images), labels).item()
        self.assertNotAlmostEqual(wanted, loss, delta=1e-9 * abs(loss))
        resumed = self.lines("residual.toml", "-n", "2", "precision=float64", "--checkpoint", "new",
                             "--resume", "steps=1", "optimizer.lr=1e-30")
        self.program("checkpoint", "export", "new", "again.safetensors")
        again = load_file(self.folder / "again.safetensors")
        self.assertEqual(resumed[0]["first_step"], 0)
        for name, value in net.state_dict().items():
            self.assertEqual(again[name].dtype, value.dtype, name)
            if name.endswith("tracked"):
                self.assertEqual(again[name].item(), 5, name)  # 3 here, 1 in Python, 1 here
            elif not name.endswith(("running_mean", "running_var")):
                self.assertTrue(torch.allclose(again[name], value, rtol=1e-12, atol=0), name)

    def test_batch_norm_goes_by_distributed_checkpoints(self):
        for settings in ({"momentum": 0.9}, {"momentum": 0}):
            run, folder = f"run{settings['momentum']}", self.folder / f"folder{settings['momentum']}"
            self.lines("residual.toml", "--checkpoint", run, f"optimizer.momentum={settings['momentum']}")
            self.program("checkpoint", "export", run, folder.name, "--format", "dcp", "--optimizer")
            self.program("checkpoint", "export", run, f"{run}.safetensors", "--optimizer")
            wanted = load_file(self.folder / f"{run}.safetensors")
            net = residual_network()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.5, **settings)
            model, optim = get_state_dict(net, optimizer)
            state = {"model": model, "optim": optim}
            dcp.load(state, checkpoint_id=folder, no_dist=True)
            set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
            self.assertEqual(optimizer.param_groups[0]["lr"], 0.01)
            for name, value in net.state_dict().items():
                self.assertTrue(torch.equal(value, wanted[name]), name)
            # back, with parameters that only have numbers, which buffers have not
            saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
            dcp.save(saved, checkpoint_id=self.folder / f"back-{run}", no_dist=True)
            self.program("checkpoint", "import", f"back-{run}", f"new-{run}")
            self.program("checkpoint", "export", f"new-{run}", f"again-{run}", "--optimizer")
            again = load_file(self.folder / f"again-{run}")
            self.assertEqual(set(again), set(wanted))
            for name, value in wanted.items():
                self.assertTrue(torch.equal(again[name], value), name)

    def test_another_type_is_refused_by_name(self):
        self.lines("residual.toml")
        self.program("checkpoint", "export", "run", "model.safetensors")
        state = load_file(self.folder / "model.safetensors")
        state["stem.norm.num_batches_tracked"] = state["stem.norm.num_batches_tracked"].float()
        save_file(state, self.folder / "python.safetensors")
        self.program("checkpoint", "import", "python.safetensors", "new")
        done = self.stormo("train", "residual.toml", "-n", "2", "--checkpoint", "new", "--resume")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("'stem.norm.num_batches_tracked' is F32 [], the model's is I64 []", done.stderr)


if __name__ == "__main__":
    main()
