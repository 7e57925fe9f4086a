"""For bench/decentralised: what is trained, and in which ways."""
import collections
import gzip
import pathlib
import re
import struct

from elastic_job import ROOT, output_of

Trained = collections.namedtuple("Trained", "recipe keys loss steps")  # until the loss, at most so many steps

RECIPES = {
    "gpt": Trained("gpt_shakespeare.toml", ["train.global_batch=24", "sample.length=0"], 2.0, 2000),
    "mnist": Trained("mnist.toml", ["data.kind=npy", "data.train=train", "data.validation=t10k",
                                    "data.layout=channels_first", "data.mean=[0.1307]", "data.stddev=[0.3081]"], 0.1, 900),
}

# Name -> the way whose keys say when it meets, and by which outer optimizer. bench/torch_train.py trains it.
PEERS = {
    "pytorch_ddp": "ddp",
    "pytorch_fp16_hook": "ddp",
    "pytorch_powersgd": "ddp",
    "pytorch_powersgd_1": "ddp",
    "pytorch_local_sgd": "averages_of_parameters",
    "pytorch_post_local_sgd": "post_local_sgd",
    "pytorch_diloco": "diloco",
}


def codecs(stormo):
    """The words that the program knows."""
    table = output_of([stormo, "train", "--help-recipe"])
    return re.search(r"`strategy\.compression` \| one of none, ([^|]*?) \|", table)[1].split(", ")


def ways(stormo, period):
    """Name -> keys. The first one is what the others are compared with."""
    averages = ["strategy.kind=parameter_averaging", f"strategy.period={period}"]
    gossip = ["strategy.kind=gossip", f"strategy.period={period}"]
    return {
        "ddp": ["strategy.kind=ddp"],
        **{codec: ["strategy.kind=ddp", f"strategy.compression={codec}"] for codec in codecs(stormo)},
        "gossip_ring": [*gossip, "strategy.topology=ring"],
        "gossip_one_peer": [*gossip, "strategy.topology=one_peer_exponential"],
        "averages": averages,
        "averages_of_parameters": [*averages, "strategy.average_state=no"],
        "post_local_sgd": [*averages, "strategy.average_state=no", f"strategy.warmup_steps={2 * period}"],
        "diloco": [*averages, "strategy.outer=nesterov", "strategy.outer_lr=0.7", "strategy.outer_momentum=0.9"],
        "streaming": [*averages, "strategy.outer=nesterov", "strategy.fragments=2", f"strategy.delay={period // 10}"],
        "slowmo": [*averages, "strategy.outer=slowmo"],
    }


def write_npy(path, dtype, shape, data):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (117 - len(header)) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + data)


def mnist_with_validation(source, folder):
    """The kind `mnist` has a test at the end only: its files, as .npy files of two folders."""
    def read(name):
        plain = source / name
        return plain.read_bytes() if plain.exists() else gzip.decompress(pathlib.Path(f"{plain}.gz").read_bytes())

    for part in ("train", "t10k"):
        (folder / part).mkdir(parents=True)
        labels = read(f"{part}-labels-idx1-ubyte")[8:]
        write_npy(folder / part / "labels.npy", "|u1", f"({len(labels)},)", labels)
        write_npy(folder / part / "images.npy", "|u1", f"({len(labels)}, 1, 28, 28)",
                  read(f"{part}-images-idx3-ubyte")[16:])
    return folder


def keys_of(name, data, scratch):
    """The recipe's file, and its keys."""
    what = RECIPES[name]
    path = mnist_with_validation(data, scratch / "mnist") if name == "mnist" else data
    return ROOT / "recipes" / what.recipe, [*what.keys, f"data.path={path}", "checkpoint.directory=", "threads=1"]
