"""Elastic training on two hosts, which are network namespaces: lines are cut, and a rank computes for ever.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import unittest

from elastic_cli import STEPS_AFTER
from elastic_hosts_cli_test import ElasticHostsTest
from train_cli import main, ranks_of

# Commands with the name of the hosts, and how a line and a port are to be.
HOST = ("ip link set {0}v2 {1}",)
HOST_OF_RANK_0 = ("ip link set {0}v1 {1}",)
EACH_FROM_THE_OTHER = ("bridge link set dev {0}v1 isolated {2}", "bridge link set dev {0}v2 isolated {2}")

PTRACE_SEIZE, PTRACE_INTERRUPT, ALL_CHILDREN = 0x4206, 0x4207, 0x40000000


def wedge(pid):
    """Stops the main thread of a process for ever, and no other one, as a debugger can."""
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(request, pid, None, None) != 0:
            raise unittest.SkipTest(f"machine: no ptrace: {os.strerror(ctypes.get_errno())}")

    def see_it_end():  # else its parent would not
        while os.WIFSTOPPED(os.waitpid(pid, ALL_CHILDREN)[1]):
            pass

    threading.Thread(target=see_it_end, daemon=True).start()


class StuckRank(ElasticHostsTest):
    RANKS = 1

    def test_a_rank_that_stays_stopped_is_replaced(self):
        """Nobody beside it ends it, and it cannot end itself."""
        job = self.job("elastic.silence=2")
        job.until_step(STEPS_AFTER)
        job.send(1, signal.SIGSTOP)
        job.until_ranks(1)
        job.until_ranks(2)
        steps, err = job.stop()
        self.assertIn("has been stopped for 8.0 s: it is ended", err)
        self.assert_as_one_process(job, steps)

    def test_a_rank_that_computes_for_ever_is_replaced(self):
        """Nobody beside it ends it. Its other threads live, and see that the job goes on without it."""
        job = self.job(environment={"STORMO_STALL_TIMEOUT": "5"})
        job.until_step(STEPS_AFTER)
        wedge(ranks_of(job.process)[1])
        job.until_ranks(1)
        job.until_ranks(2)
        steps, err = job.stop()
        # its member says the first, its watch of operations the second; on a busy machine either is first
        self.assertRegex(err, "does not come to an end|does not notice that the job has failed")
        self.assert_as_one_process(job, steps)


class ElasticCuts(ElasticHostsTest):
    def test_cut_lines_leave_one_lineage(self):
        """Who reaches the register, which the launcher has, goes on. The other side comes back, and changes nothing. A
        rank 0 that is cut off lets go of the folder of checkpoints, although nobody can tell it that others go on. Two
        halves that do not hear each other reach the register, and want to go on."""
        self.assert_one_lineage((HOST, HOST_OF_RANK_0, EACH_FROM_THE_OTHER))

    def test_a_cut_line_leaves_one_lineage_with_the_register_of_a_site(self):
        if shutil.which("etcd") is None:
            self.skipTest("set-up: no etcd in PATH; ./check gets it")
        self.assert_one_lineage((HOST_OF_RANK_0,), f"elastic.register=etcd://{self.start_etcd()}")

    def assert_one_lineage(self, cuts, *words):
        job = self.job("checkpoint.directory=cut", "checkpoint.every=10", *words)
        job.until_step(STEPS_AFTER)
        for cut in cuts:
            self.call(*(command.format(self.name, "down", "on") for command in cut))
            job.until_ranks(2)
            self.call(*(command.format(self.name, "up", "off") for command in cut))
            job.until_ranks(4)
        steps, _ = job.stop()
        self.assert_as_one_process(job, steps)
        self.assertEqual(self.stormo("checkpoint", "verify", "cut").returncode, 0)
        self.assert_goes_on_as_one_process("cut", steps)

    def start_etcd(self):
        """One member, which both hosts reach; its address."""
        text = subprocess.run(["ip", "-j", "-4", "address", "show", f"{self.name}br"], capture_output=True, text=True,
                              check=True).stdout
        host = json.loads(text)[0]["addr_info"][0]["local"]
        with socket.socket() as one, socket.socket() as two:
            one.bind((host, 0))
            two.bind(("127.0.0.1", 0))
            client, peer = (f"http://{h}:{p}" for h, p in (one.getsockname(), two.getsockname()))
        etcd = subprocess.Popen(
            ["etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(etcd.wait)
        self.addCleanup(etcd.kill)
        address = client.removeprefix("http://")
        host, port = address.split(":")
        for _ in range(100):
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection((host, port), 10):
                return address
            time.sleep(0.1)
        raise AssertionError("etcd does not answer")

    def call(self, *commands):
        for command in commands:
            subprocess.run(command.split(), check=True)

    def assert_goes_on_as_one_process(self, folder, steps):
        """What was published last is the state of a run without faults: so are its next steps."""
        again, one = (self.stormo("train", "mlp.toml", "--json", "precision=float64", f"train.steps={steps + 10}",
                                  f"checkpoint.directory={where}", option) for where, option in
                      ((folder, "--resume"), ("one", "--overwrite")))
        losses = [{r["step"]: r["loss"] for r in map(json.loads, done.stdout.splitlines()) if r["event"] == "step"}
                  for done in (again, one)]
        self.assertIn(steps + 10, losses[0], again.stderr)
        for step, loss in losses[0].items():
            self.assertAlmostEqual(loss, losses[1][step], delta=1e-9 * max(1, abs(loss)), msg=f"step {step}")


if __name__ == "__main__":
    main()
