"""docs/guides/several-hosts.md: what works and what is refused on two hosts, which are network namespaces
here, with and without a file system in common.

Usage: several_hosts_test.py PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import os
import subprocess

from hosts_cli import HostsTest
from train_cli import STORMO, main

BENCH = (STORMO, "bench", "all_reduce", "--bytes", "8", "--time", "1ms", "--json")


def launched_by_hand(rank, run):
    """What torchrun sets; people set it by hand, too."""
    return {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank,
            "MASTER_ADDR": "10.255.255.1", "MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": run}


def launched_by_slurm(rank, run):
    return {"SLURM_JOB_ID": 17, "SLURM_STEP_ID": 0, "SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": 2,
            "SLURM_LOCALID": 0, "SLURM_NODEID": rank, "SLURM_STEP_NUM_NODES": 2,
            "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_NAME": run}


class SeveralHosts(HostsTest):
    def by(self, launcher, **more):
        """A rank on each host, started as `launcher` does; their exit codes and what both said."""
        ranks = []
        for rank in range(2):
            environment = {**os.environ, "STORMO_JOIN_TIMEOUT": "20s", "STORMO_INTERFACE": "eth0", **launcher(rank, self.name), **more}
            ranks.append(subprocess.Popen(
                [self.on_host, f"{self.name}-{rank + 1}", *BENCH], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, env={name: str(value) for name, value in environment.items()}))
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
        return [rank.returncode for rank in ranks], said

    def test_a_foreign_launcher_without_a_file_is_refused_with_both_remedies(self):
        for launcher in (launched_by_hand, launched_by_slurm):
            codes, said = self.by(launcher)
            self.assertEqual(codes, [2, 2], said)
            for text in said:
                self.assertIn("STORMO_RENDEZVOUS=file:PATH", text)
                self.assertIn("stormo run -H", text)

    def test_a_foreign_launcher_with_a_file_on_a_shared_file_system_works(self):
        for launcher in (launched_by_hand, launched_by_slurm):
            codes, said = self.by(launcher, STORMO_RENDEZVOUS=f"file:{self.shared}/job")
            self.assertEqual(codes, [0, 0], said)
            self.assertIn('"hosts":2', said[0])
            self.assertEqual(list(self.shared.iterdir()), [])  # the secret is gone

    def test_a_file_on_disks_of_their_own_is_named_by_both(self):
        codes, said = self.by(launched_by_hand, STORMO_RENDEZVOUS=f"file:{self.private}/job", STORMO_JOIN_TIMEOUT="2s")
        self.assertNotIn(0, codes)
        self.assertIn("rank 1 of 2 has not joined within 2 s", said[0])
        self.assertIn(f"{self.private}/job", said[1])

    def test_a_file_that_exists_is_never_replaced(self):
        (self.shared / "job").write_text("of another job\n")
        (self.shared / "job").chmod(0o600)
        codes, said = self.by(launched_by_hand, STORMO_RENDEZVOUS=f"file:{self.shared}/job", STORMO_JOIN_TIMEOUT="2s")
        self.assertNotIn(0, codes)
        self.assertIn(f"{self.shared}/job", said[0])
        self.assertEqual((self.shared / "job").read_text(), "of another job\n")

    def train(self, directory, *more):
        return self.on_two_hosts("mlp.toml", f"checkpoint.directory={directory}", *more)

    def test_training_needs_no_file_system_in_common_unless_state_is_sharded(self):
        done = self.train(self.private / "run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('"hosts":2', done.stdout)
        sharded = self.train(self.shared / "run", "strategy.kind=fsdp")
        self.assertEqual(sharded.returncode, 0, sharded.stderr)
        apart = self.train(self.private / "apart", "strategy.kind=fsdp")
        self.assertNotEqual(apart.returncode, 0)
        self.assertIn(f"{self.name}-2", apart.stderr)
        self.assertIn(f"{self.private}/apart", apart.stderr)


if __name__ == "__main__":
    main()
