"""Writers of small data sets, in the forms that Stormo reads."""

import json
import random
import struct
import zlib


def idx(magic, dims, data):
    return struct.pack(f">I{len(dims)}I", magic, *dims) + data


def write_mnist(folder, train=96, test=32):
    """Images whose class is the bright row: learnable, 28 x 28."""
    folder.mkdir(parents=True)
    rng = random.Random(1)
    for name, count in (("train", train), ("t10k", test)):
        labels = bytes(rng.randrange(10) for _ in range(count))
        images = bytearray()
        for label in labels:
            image = bytearray(28 * 28)
            image[28 * label : 28 * label + 28] = bytes([200 + rng.randrange(50)] * 28)
            images += image
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(0x803, [count, 28, 28], images))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(0x801, [count], labels))


def png(height, width, pixels):
    """Of grey or RGB bytes, row by row."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = len(pixels) // height
    colour = {1: 0, 3: 2}[row // width]
    rows = b"".join(b"\0" + pixels[row * y : row * (y + 1)] for y in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, colour, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_pictures(folder, classes, height, width, greys):
    """An image folder: picture i has one grey value all over and is CLASS/i.png, the classes in turns."""
    for i, grey in enumerate(greys):
        path = folder / classes[i % len(classes)] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(height, width, bytes([grey] * height * width)))


def npy(dtype, shape, data):
    header = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (117 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + data


def safetensors(inputs, targets):
    """`inputs`: rows of floats, `targets`: whole numbers."""
    values = b"".join(struct.pack(f"<{len(row)}f", *row) for row in inputs)
    labels = struct.pack(f"<{len(targets)}q", *targets)
    header = json.dumps({
        "inputs": {"dtype": "F32", "shape": [len(inputs), len(inputs[0])],
                   "data_offsets": [0, len(values)]},
        "targets": {"dtype": "I64", "shape": [len(targets)],
                    "data_offsets": [len(values), len(values) + len(labels)]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + values + labels
