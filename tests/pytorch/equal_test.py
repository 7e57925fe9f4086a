"""Programs of PyTorch give over Stormo what they give over Gloo: equal to the last bit on 2 ranks, where sums have one
order, and to 1e-12 in float64 on 4."""
import pathlib
import tempfile
import unittest

import torch
import torch.distributed as dist

import programs
from forked_ranks import JoinedRanks

ON_ALL = [
    "ddp", "ddp_of_unused_parameters", "join_of_uneven_inputs", "zero_redundancy_optimizer", "fsdp2",
    "tensor_parallel", "sequence_parallel", "pipeline_1f1b", "pipeline_zero_bubble",
]
if torch.__version__ >= "2.12":  # before, a rank whose stages are neighbours sends to itself, over any backend
    ON_ALL.append("pipeline_zero_bubble_v")
ON_FOUR = ["hsdp", "tensor_parallel_in_fsdp2"]  # over a mesh of 2 x 2


def of_this_rank(name, *arguments):
    torch.manual_seed(3)
    return getattr(programs, name)(*arguments)


def train_on_four(folder):
    torch.set_default_dtype(torch.float64)
    return {"backend": name_of_backend(), "saved": of_this_rank("save", folder),
            **{name: of_this_rank(name) for name in ON_ALL + ON_FOUR}}


def train_on_two(folder):
    in_float32 = {name: of_this_rank(name) for name in ON_ALL}
    stormo = name_of_backend() == "stormo"
    in_float32["in_arena"] = of_this_rank("fsdp2_in_memory_of_the_group", in_arena if stormo else lambda tensor: False)
    torch.set_default_dtype(torch.float64)
    return {"backend": name_of_backend(), "loaded": of_this_rank("load_and_continue", folder), **in_float32}


def in_arena(tensor):
    import stormo_torch

    return stormo_torch.in_arena(tensor)


def name_of_backend():
    return dist.group.WORLD._get_backend(torch.device("cpu")).name()


class EqualTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results = {}
        with tempfile.TemporaryDirectory() as folder:
            for backend in ("gloo", "stormo"):  # of the 4 ranks first: they save what the 2 load
                for size, function in ((4, train_on_four), (2, train_on_two)):
                    saved = str(pathlib.Path(folder) / backend)
                    cls.results[backend, size] = JoinedRanks(function, size, saved, backend=backend).wait()

    def pairs(self, name, size):
        """Of each rank, over Gloo and over Stormo."""
        for of_gloo, of_stormo in zip(self.results["gloo", size], self.results["stormo", size]):
            yield of_gloo[name], of_stormo[name]

    def check_to_the_last_bit(self, gloo, stormo):
        for i, (a, b) in enumerate(zip(gloo, stormo, strict=True)):
            self.assertTrue(torch.equal(a, b), f"tensor {i} of {len(gloo)}: {a} and {b}")

    def check_nearly(self, gloo, stormo):
        self.assertEqual({t.dtype for t in gloo if t.is_floating_point() and t.dim() > 0}, {torch.float64})
        torch.testing.assert_close(stormo, gloo, rtol=1e-12, atol=1e-12)

    def test_each_ran_over_its_backend(self):
        for backend, size in self.results:
            for result in self.results[backend, size]:
                self.assertEqual(result["backend"], backend)

    def test_each_made_all_steps(self):
        for backend, size in self.results:
            for name in ON_ALL + (ON_FOUR if size == 4 else []):  # the last rank of a pipeline alone has losses
                self.assertGreater(max(len(of[name]) for of in self.results[backend, size]), programs.STEPS, name)

    def test_fsdp2_in_the_arena(self):
        """What FSDP2 takes from the group is in the Arena, and gives the same numbers."""
        for (gloo, _), (stormo, large) in self.pairs("in_arena", 2):
            self.check_to_the_last_bit(gloo, stormo)
            self.assertEqual(set(large), {"c10d::_allgather_base_", "c10d::_reduce_scatter_base_"})
            for where in large.values():
                self.assertEqual(set(where), {True})

    def test_checkpoint_of_four_ranks_on_two(self):
        """DCP, with the optimizer's state."""
        for backend in ("gloo", "stormo"):
            [saved, *_] = [result["saved"] for result in self.results[backend, 4]]
            for result in self.results[backend, 2]:
                loaded, _ = result["loaded"]
                for a, b in zip(saved, loaded, strict=True):
                    self.assertTrue(torch.equal(a, b))
        for (_, gloo), (_, stormo) in self.pairs("loaded", 2):
            self.check_nearly(gloo, stormo)


def add_test(name, sizes):
    def test(self):
        for gloo, stormo in self.pairs(name, 4):
            self.check_nearly(gloo, stormo)
        for gloo, stormo in self.pairs(name, 2) if 2 in sizes else []:
            self.check_to_the_last_bit(gloo, stormo)

    setattr(EqualTest, f"test_{name}", test)


for name in ON_ALL:
    add_test(name, (2, 4))
for name in ON_FOUR:
    add_test(name, (4,))


if __name__ == "__main__":
    unittest.main()
