"""Loads the extension that was built for the torch of this process.

torch's C++ interface of backends differs between its minor versions, so a wheel has an extension for each:
_c10d_2_13.so for torch 2.13. A wrong one would be refused by the loader for some undefined symbol, or would
crash; so the version is looked at first.
"""

import importlib.machinery
import importlib.util
import os
import pathlib
import re
import sys
import threading

_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_loaded = None  # the module, and the process that loaded it


def extension():
    """The module stormo_torch._c10d. Raises ImportError, or RuntimeError in a process that must not use it."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load(), os.getpid()
    module, process = _loaded
    if process != os.getpid():
        # The parent's threads and connections are not here, and its shared memory is not to be written.
        raise RuntimeError(
            "stormo_torch: this process was forked from one that already used Stormo; start ranks by spawn "
            "(torch.multiprocessing.spawn, torchrun), or fork them before the parent creates a group or calls "
            "anything of stormo_torch"
        )
    return module


def _load():
    import torch

    folder = pathlib.Path(__file__).parent
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    path = folder / f"_c10d_{found[1]}_{found[2]}.so" if found else None
    if path is None or not path.exists():
        built = [(int(m[1]), int(m[2])) for path in folder.iterdir() if (m := _FILE.fullmatch(path.name))]
        versions = [f"{major}.{minor}" for major, minor in sorted(built)]
        raise ImportError(
            f"stormo_torch: built for torch {', '.join(versions) or '(none)'}, found {torch.__version__}; "
            + (f"pip install 'torch=={versions[-1]}.*', or " if versions else "")
            + "build stormo-torch for yours"
        )
    name = "stormo_torch._c10d"
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path, loader=loader))
    loader.exec_module(module)
    sys.modules[name] = module
    return module


_FILE = re.compile(r"_c10d_(\d+)_(\d+)\.so")
