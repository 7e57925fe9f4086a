#!/usr/bin/env python3
"""What somebody does who has just built Stormo: pictures, a text, PyTorch and back, two hosts.

usage: journey.py STORMO REPOSITORY [--python PYTHON] [--prefix PREFIX --torch LIBTORCH]

PYTHON: one with torch and safetensors. PREFIX: an installed Stormo, for a project of one's own. Every
command is shown as a person would type it; the first that does not do what it should ends the journey.
"""
import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "multiproc"))
from small_data import png  # noqa: E402

SIDE = 12
PICTURES = """schema_version = 1
name = "pictures"
[model]
kind = "mlp"
sizes = [432, 24, 2]
[data]
kind = "image_folder"
path = "pictures"
train = "train"
test = "test"
image = [3, 12, 12]
[train]
epochs = 8
global_batch = 8
log_every = 5
[optimizer]
lr = 0.05
[checkpoint]
directory = "runs/pictures"
"""
TEXT = ("model.layers=1", "model.width=32", "model.context=32", "train.global_batch=4", "train.steps=6", "sample.length=0",
        "checkpoint.directory=runs/text")
# The exported model in PyTorch: argv: model, pictures as JSON [[class, bytes], ...], where to save it again.
IN_PYTORCH = """
import json, sys, torch
from safetensors.torch import load_file, save_file
state = load_file(sys.argv[1])
names = list(state)
layers = [torch.nn.Linear(432, 24), torch.nn.Linear(24, 2)]
for layer, at in zip(layers, (0, 2)):
    weights = sorted((n for n in names if state[n].dim() == 2), key=lambda n: -state[n].shape[0])
    name = weights[at // 2]
    layer.load_state_dict({"weight": state[name], "bias": state[name.replace("weight", "bias")]})
pictures = json.load(open(sys.argv[2]))
x = torch.tensor([p for _, p in pictures]).view(-1, 12, 12, 3).permute(0, 3, 1, 2).flatten(1)
logits = layers[1](torch.relu(layers[0](((x / 255) - 0.5) / 0.5)))
y = torch.tensor([c for c, _ in pictures])
print(json.dumps({"accuracy": (logits.argmax(1) == y).double().mean().item(),
                  "loss": torch.nn.functional.cross_entropy(logits, y).item()}))
save_file(state, sys.argv[3])
"""


def picture(is_day, seed):
    """Bright above or bright below, in a colour of its own."""
    tint = [(37 * seed + 60 * c) % 90 for c in range(3)]
    return bytes(min(255, tint[c] + (140 if (y < SIDE // 2) == is_day else 0)) for y in range(SIDE)
                 for _ in range(SIDE) for c in range(3))


def leave_results(left_out):
    """For tools/test_report, as GoogleTest does: in the folder of GTEST_OUTPUT."""
    folder = os.environ.get("GTEST_OUTPUT", "").removeprefix("xml:")
    if folder:
        suite = xml.etree.ElementTree.Element("testsuite")
        for reason in left_out or [""]:
            case = xml.etree.ElementTree.SubElement(suite, "testcase", classname="Newcomer", name="Journey")
            if reason:
                xml.etree.ElementTree.SubElement(case, "skipped", message=reason)
        xml.etree.ElementTree.ElementTree(suite).write(pathlib.Path(folder) / "newcomer_journey.xml")


class Journey:
    def __init__(self, a, folder):
        self.a, self.folder, self.left_out = a, folder, []

    def run(self, *command, json_lines=False, environment=None):
        """Its standard output, or the objects in it."""
        words = [str(word) for word in command]
        print("$", shlex.join(words).replace(str(self.a.stormo), "stormo"), flush=True)
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                              env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}, timeout=600)
        if done.returncode != 0:
            sys.exit(f"ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()] if json_lines else done.stdout

    def stormo(self, *arguments):
        return self.run(self.a.stormo, *arguments)

    def events(self, *arguments):
        return self.run(self.a.stormo, *arguments, "--json", json_lines=True)

    def must(self, what, holds, seen=""):
        if not holds:
            sys.exit(f"{what}: {seen}")
        print(f"  ok: {what}", flush=True)

    def make_pictures(self):
        self.test = []
        for part, count in (("train", 48), ("test", 16)):
            for i in range(count):
                folder = self.folder / "pictures" / part / ("day", "night")[i % 2]
                folder.mkdir(parents=True, exist_ok=True)
                pixels = picture(i % 2 == 0, i + (100 if part == "test" else 0))
                (folder / f"{i}.png").write_bytes(png(SIDE, SIDE, pixels))
                if part == "test":
                    self.test.append((i % 2, list(pixels)))
        (self.folder / "pictures.toml").write_text(PICTURES)

    def pictures(self):
        self.make_pictures()
        lines = self.events("train", "pictures.toml", "-n", "2")
        self.trained = next(line for line in lines if line["event"] == "eval" and line["split"] == "test")
        self.must("two ranks learn what the pictures show", self.trained["accuracy"] > 0.9, self.trained)
        (again,) = self.events("evaluate", "runs/pictures")
        self.must("the checkpoint judges the test pictures alike", again["accuracy"] == self.trained["accuracy"], again)
        told = self.events("predict", "runs/pictures", "pictures/test/night/1.png")
        self.must("a picture gets the name of its class", told[0]["classes"][0]["class"] == "night", told)

    def text(self):
        recipe = self.a.repository / "recipes/quickstart.toml"
        self.events("train", recipe, "-n", "2", *TEXT, f"data.path={self.a.repository / 'docs'}")
        said = self.stormo("sample", "runs/text", "--prompt", "A rank ", "--length", "20", "--seed", "3")
        self.must("a model of texts goes on with a sentence", len(said.encode()) >= 20, repr(said))

    def pytorch_and_back(self):
        found = subprocess.run([self.a.python, "-c", "import torch, safetensors"], capture_output=True)
        if found.returncode != 0:
            self.left_out.append(f"optional: PyTorch and back: {self.a.python} has no torch or no safetensors")
            return
        self.stormo("checkpoint", "export", "runs/pictures", "model.safetensors")
        (self.folder / "pictures.json").write_text(json.dumps(self.test))
        (self.folder / "judge.py").write_text(IN_PYTORCH)
        there = json.loads(self.run(self.a.python, "judge.py", "model.safetensors", "pictures.json", "back.safetensors"))
        self.must("PyTorch gets the same accuracy and loss out of it", there["accuracy"] == self.trained["accuracy"] and
                  abs(there["loss"] - self.trained["loss"]) < 1e-5, (there, self.trained))
        self.stormo("checkpoint", "import", "back.safetensors", "runs/back")
        lines = self.events("train", "pictures.toml", "--checkpoint", "runs/back", "--resume", "optimizer.lr=1e-12", "steps=1")
        back = next(line for line in lines if line["event"] == "eval" and line["split"] == "test")
        self.must("and training goes on from what PyTorch saved", abs(back["loss"] - self.trained["loss"]) < 1e-5, back)

    def two_hosts(self):
        hosts, name = self.a.repository / "tools/hosts", f"j{os.getpid() % 1000000}"
        up = subprocess.run([hosts, "up", "2", "--name", name], capture_output=True, text=True)
        if up.returncode != 0:
            self.left_out.append(f"root: two hosts: {up.stderr.strip()}")
            return
        try:
            lines = self.events("train", "pictures.toml", "--checkpoint", "runs/hosts", *shlex.split(up.stdout))
        finally:
            subprocess.run([hosts, "down", "--name", name], check=True)
        test = next(line for line in lines if line["event"] == "eval" and line["split"] == "test")
        self.must("two hosts train as one", lines[0]["hosts"] == 2 and test["accuracy"] == self.trained["accuracy"], lines)

    def own_project(self):
        if self.a.prefix is None:
            return
        self.run("cmake", "-S", self.a.repository / "tests/consumer", "-B", "own", "-G", "Ninja",
                 f"-DCMAKE_PREFIX_PATH={self.a.prefix}", f"-DSTORMO_TORCH={self.a.torch}", "-DCMAKE_BUILD_TYPE=Release")
        self.run("cmake", "--build", "own")
        said = self.run(self.a.prefix / "bin/stormo", "run", "-n", "2", "--", "own/consumer",
                        environment={"STORMO_TORCH": self.a.torch})
        weights = {line.split("weights ")[1] for line in said.splitlines() if "weights " in line}
        self.must("a project of one's own trains alike on both ranks", len(weights) == 1 and said.count("weights ") == 2, said)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stormo", type=pathlib.Path)
    parser.add_argument("repository", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--prefix", type=pathlib.Path)
    parser.add_argument("--torch", default="")
    parser.add_argument("--whole", action="store_true", help="what must be left out is a failure")
    a = parser.parse_args()
    a.stormo, a.repository = a.stormo.resolve(), a.repository.resolve()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stormo-journey-") as folder:
        journey = Journey(a, pathlib.Path(folder))
        for step in (journey.pictures, journey.text, journey.pytorch_and_back, journey.two_hosts, journey.own_project):
            step()
    for what in journey.left_out:
        print(f"left out: {what}")
    leave_results(journey.left_out)
    print(f"{time.monotonic() - begun:.0f} s")
    return 1 if a.whole and journey.left_out else 0


if __name__ == "__main__":
    sys.exit(main())
