"""Counts the bytes that this process passes to system calls: strace looks at it for a while."""
import contextlib
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

CALLS = ("read,write,pread64,pwrite64,readv,writev,preadv,pwritev,preadv2,pwritev2,recvfrom,sendto,recvmsg,sendmsg,"
         "process_vm_readv,process_vm_writev,sendfile,splice,vmsplice,tee,copy_file_range")
NOT_COUNTED = "recvmmsg,sendmmsg,io_uring_enter"  # they do not return bytes
_PR_SET_PTRACER = 0x59616D61
_ENDED = re.compile(r"^\d* *(?:<\.\.\. )?(\w+)(?:\(| resumed).* = (\d+)\b", re.MULTILINE)


@contextlib.contextmanager
def counted_bytes():
    """Gives a dict that afterwards has the bytes of all threads of this process, by name of the call."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1))  # a kernel may forbid a child to look at its parent
    bytes_of = {}
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "calls")
        tracer = subprocess.Popen(["strace", "-f", "-qq", "-s", "16", "-o", file, "-e",
                                   f"trace={CALLS},{NOT_COUNTED}", "-p", str(os.getpid())], stderr=subprocess.PIPE)
        try:
            _await_tracer(tracer)
            yield bytes_of
        finally:
            tracer.send_signal(signal.SIGINT)  # it lets go
            tracer.communicate()
        for name, result in _ENDED.findall(file.read_text()):
            assert name not in NOT_COUNTED.split(","), f"{name}: its bytes are not known"
            bytes_of[name] = bytes_of.get(name, 0) + int(result)


def _await_tracer(tracer):
    """Until it looks at every thread."""
    for thread in os.listdir("/proc/self/task"):
        while "TracerPid:\t0\n" in pathlib.Path(f"/proc/self/task/{thread}/status").read_text():
            if tracer.poll() is not None:
                raise RuntimeError(f"strace: {tracer.stderr.read().decode()}")
            time.sleep(0.01)
