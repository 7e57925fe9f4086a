"""The installed package stormo-torch, in an environment with torch and numpy only.

Run by the Python of that environment, in a folder from which the checkout cannot be seen.
"""

import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

PACKAGE = pathlib.Path(importlib.util.find_spec("stormo_torch").origin).parent
SITE = PACKAGE.parent


class Checkout(unittest.TestCase):
    def test_it_is_out_of_reach(self):
        if "STORMO_CHECKOUT" not in os.environ:
            self.skipTest("set-up: tests/wheel/run says where it is")
        if os.getuid() != 0:
            self.skipTest("root: the checkout is hidden by a mount")
        self.assertEqual(os.listdir(os.environ["STORMO_CHECKOUT"]), ["build"])  # what the tests need is below


class Package(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def python(self, code, path=None):
        """Runs code in a process of its own."""
        file = self.folder / "code.py"
        file.write_text(textwrap.dedent(code))
        variables = dict(os.environ, PYTHONPATH=str(path) if path else "", OMP_NUM_THREADS="1")
        return subprocess.run(
            [sys.executable, file], capture_output=True, text=True, timeout=100, cwd=self.folder, env=variables
        )

    def says(self, code, expected, path=None):
        done = self.python(code, path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.strip(), expected)

    def fails(self, code, sentence, path=None):
        """The last line is the one that a user reads."""
        done = self.python(code, path)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr.splitlines()[-1], sentence)

    def copy(self):
        """The package, to be harmed."""
        folder = self.folder / "copy"
        for path in SITE.glob("stormo_torch*"):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / path.name)
        return folder

    def test_import_torch_is_enough_and_loads_nothing(self):
        self.says(
            """
            import torch
            print("stormo" in torch.distributed.Backend.backend_list, "_c10d_" in open("/proc/self/maps").read())
            """,
            "True False",
        )

    def test_import_takes_no_time(self):
        code = """
            import os
            os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
            import time, torch
            start = time.process_time()
            import stormo_torch
            print(time.process_time() - start)
            """
        self.assertTrue(any(float(self.python(code).stdout) < 0.05 for _ in range(3)))

    def test_another_torch_is_one_sentence(self):
        built = sorted(int(path.name.split("_")[3][:-3]) for path in PACKAGE.glob("_c10d_2_*.so"))
        versions = ["2.10.1", f"2.{built[0] - 1}.1", f"2.{built[-1] + 1}.0", "3.0.0", "9.9.0a0"]
        code = """
            import torch, torch.distributed as dist
            torch.__version__ = "{version}"
            dist.init_process_group("stormo", store=dist.HashStore(), rank=0, world_size=1)
            """
        sentence = r"^ImportError: stormo_torch: built for torch 2\.\d+.*, found {version}; pip install 'torch==2"
        self.fails(code.format(version=versions[0]), sentence.format(version=versions[0]))
        done = self.python(f"""
            import torch, torch.distributed as dist
            for torch.__version__ in {versions}:
                try:
                    dist.init_process_group("stormo", store=dist.HashStore(), rank=0, world_size=1)
                except ImportError as error:
                    print("ImportError:", error)
            """)
        for version, said in zip(versions, done.stdout.splitlines(), strict=True):
            self.assertRegex(said, sentence.format(version=version))

    def test_a_broken_extension_harms_no_import_of_torch(self):
        copy = self.copy()
        for extension in (copy / "stormo_torch").glob("_c10d_*.so"):
            extension.write_bytes(b"\x7fELF and then nothing")
        self.says("import torch, stormo_torch; print(stormo_torch.__file__)", f"{copy}/stormo_torch/__init__.py", copy)
        self.fails("import stormo_torch\nstormo_torch.StormoOptions", "^ImportError: .*_c10d_", copy)

    def test_a_broken_package_harms_no_import_of_torch(self):
        copy = self.copy()
        (copy / "stormo_torch/__init__.py").write_text("raise RuntimeError('broken')")
        self.says("import torch; print('stormo' in torch.distributed.Backend.backend_list)", "False", copy)
        self.fails("import stormo_torch", "^RuntimeError: broken", copy)

    def test_a_fork_of_a_process_that_used_stormo_is_refused(self):
        self.says(
            """
            import os, stormo_torch
            stormo_torch.StormoOptions
            if os.fork() == 0:
                try:
                    stormo_torch.StormoOptions
                except RuntimeError as error:
                    print(str(error)[:56], flush=True)
                os._exit(0)
            os.wait()
            """,
            "stormo_torch: this process was forked from one that alre",
        )

    def test_a_fork_waits_for_a_thread_that_loads(self):
        self.says(
            """
            import os, signal, threading
            from stormo_torch import _load
            _load._lock.acquire()  # as a thread that loads
            threading.Timer(0.1, _load._lock.release).start()
            if os.fork() == 0:
                signal.alarm(20)
                _load.extension()
                os._exit(0)
            print(os.wait()[1])
            """,
            "0",
        )

    def test_two_ranks_train(self):
        self.says(
            """
            import sys, tempfile, torch
            import torch.distributed as dist

            def rank(rank, file, backend):
                dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=2)
                torch.manual_seed(0)
                model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
                model(torch.full((4, 3), float(rank))).sum().backward()
                gradient = model.module.weight.grad
                assert torch.equal(gradient, torch.full((2, 3), 2.0)), gradient
                mapped = {line.split()[-1] for line in open("/proc/self/maps") if "_c10d_" in line}
                dist.destroy_process_group()
                if rank == 0:
                    print(*mapped)

            if __name__ == "__main__":
                with tempfile.TemporaryDirectory() as folder:
                    torch.multiprocessing.spawn(rank, (f"{folder}/store", "stormo"), nprocs=2)
            """,
            str(self.extension()),
        )

    def test_hooks_of_new_nodes_are_called_with_averaged_gradients(self):
        import torch

        if not hasattr(torch.autograd.graph, "node_creation_hook"):
            self.skipTest("optional: node_creation_hook is of torch 2.14 and later")
        self.says(
            """
            import torch, stormo_torch
            import torch.distributed as dist

            dist.init_process_group("stormo", store=dist.HashStore(), rank=0, world_size=1)
            model = torch.nn.Linear(3, 2)
            averaged = stormo_torch.average_gradients(model)
            names = []
            with torch.autograd.graph.node_creation_hook(lambda node: names.append(node.name())):
                model(torch.ones(4, 3)).sum()
            print(*names)
            dist.destroy_process_group()
            """,
            "TBackward0 AddmmBackward0 SumBackward0",
        )

    def extension(self):
        import torch

        major, minor = torch.__version__.split(".")[:2]
        return PACKAGE / f"_c10d_{major}_{minor}.so"

    def test_version(self):
        self.says(
            "import stormo_torch; print(stormo_torch.__version__)", importlib.metadata.version("stormo-torch")
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
