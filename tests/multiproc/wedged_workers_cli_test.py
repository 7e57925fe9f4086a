"""stormo train with workers that do not wait for each other in collectives, of which one hangs: its
main thread does nothing any more, but its process still says that it lives."""

import os
import signal
import subprocess
import time

from train_cli import LONG_FORM, REPOSITORY, TrainTest, main, ranks_of

HANG = 40  # see wedge.c
SERVERS = "strategy.kind=parameter_server"
POLICIES = ("sync", "async", "ssp", "n_softsync", "backup_workers") if LONG_FORM else ("sync", "async")
LIMITS = ("--stall-warning", "2s", "--stall-timeout", "5s")  # those who do not hang are under them, too
STEPS = 1500  # enough that no run is over before a rank of it hangs
ENDLESS = 1000000  # of a run that the rank that hangs ends


class WedgedWorkersTest(TrainTest):
    def setUp(self):
        super().setUp()
        self.library = self.folder / "wedge.so"
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", self.library,
                        REPOSITORY / "tests/multiproc/wedge.c"], check=True)

    def start_run(self, *arguments, name="run", steps=STEPS):
        """A run of which any rank can be made to hang."""
        return self.start("mlp.toml", "--json", f"steps={steps}", "data.path=data/mnist", *LIMITS,
                          f"checkpoint.directory={name}", *arguments, environment={
                              "LD_PRELOAD": str(self.library), "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"})

    def hang(self, run, number):
        """After some steps: one rank of the run hangs, and no other."""
        self.read_until(run, "step", 20)
        process = ranks_of(run)[number]
        os.kill(process, HANG)
        return process

    def test_in_shared_memory_it_ends_the_job(self):
        ways = {policy: (SERVERS, f"strategy.policy={policy}") for policy in POLICIES}
        ways["averaging"] = ("strategy.kind=parameter_averaging", "strategy.period=4")
        ways["elastic"] = ("strategy.kind=elastic_averaging", "strategy.period=4")
        runs, stuck = {}, {}
        for way in ways:  # side by side; in other ways nobody waits before the end
            steps = ENDLESS if way in ("sync", "ssp", "averaging") else STEPS
            runs[way] = self.start_run("-n", "3", *ways[way], name=way, steps=steps)
            stuck[way] = self.hang(runs[way], 1)
        for way, run in runs.items():
            with self.subTest(way):
                code, _, err = self.outcome_of(run)
                self.assertEqual(code, 1, err)
                named = rf"rank 1 \(host \S+, pid {stuck[way]}\):? has not reached .*waits? in it"
                if way == "averaging":  # it may hang inside of the all_reduce, where the others are, too
                    named += r"|all_reduce .* has not ended for .* nobody is missing: ranks 0, 1, 2 are in it"
                else:
                    self.assertIn("pause", err, "the stack of who hangs")
                self.assertRegex(err, named)

    def test_a_stopped_rank_in_shared_memory_ends_the_job(self):
        runs = {}
        for policy in ("sync", "ssp"):
            run = runs[policy] = self.start_run("-n", "3", SERVERS, f"strategy.policy={policy}", "--heartbeat", "0s",
                                                name=policy, steps=ENDLESS)
            self.read_until(run, "step", 20)
            os.kill(ranks_of(run)[1], signal.SIGSTOP)
        for policy, run in runs.items():
            with self.subTest(policy):
                code, _, err = self.outcome_of(run)
                self.assertEqual(code, 1, err)
                self.assertRegex(err, r"rank 1 \(host .*does not answer.* has not ended for .*its process is stopped")

    def test_with_server_processes_the_others_go_on(self):
        ways = {policy: (SERVERS, f"strategy.policy={policy}") for policy in POLICIES}
        ways["elastic"] = ("strategy.kind=elastic_averaging", "strategy.period=4")
        ways["backups"] = (SERVERS, "strategy.policy=sync", "strategy.server_processes=2", "strategy.server_backups=true")
        runs = {}
        for way in ways:
            ranks = "5" if way == "backups" else "4"
            runs[way] = self.start_run("-n", ranks, "strategy.server_processes=1", *ways[way], name=way)
            self.hang(runs[way], 2)
        for way, run in runs.items():
            with self.subTest(way):
                code, records, err = self.outcome_of(run)
                self.assertEqual(code, 0, err)
                self.assertEqual((records[-1]["event"], records[-1]["steps"]), ("end", STEPS))
                # whoever is first to wait: where nobody waits for others, who is first to be through
                self.assertRegex(err, "worker 2 was lost: it has made no progress for .*; "
                                      "(worker [01] waits|workers 0, 1 wait); its last: step")
                self.assertIn("the job goes on without it", err)

    def test_a_first_worker_that_hangs_ends_the_run(self):
        runs = {}
        for policy in ("sync", "async"):
            run = runs[policy] = self.start_run("-n", "3", SERVERS, "strategy.server_processes=1",
                                                f"strategy.policy={policy}", "checkpoint.every=10", name=policy)
            self.read_until(run, "step", 20)
            while not (self.folder / policy / "latest").exists():
                self.read_until(run, "step")
            self.hang(run, 0)
        for policy, run in runs.items():
            with self.subTest(policy):
                code, _, err = self.outcome_of(run)
                self.assertEqual(code, 75, err)
                self.assertRegex(err, "worker 0, which keeps the run, was lost: it has made no progress")
                self.assertIn("--resume", err)

    def test_a_pause_is_no_stall(self):
        """A worker that is stopped as a whole for less than the limits, while others wait."""
        run = self.start_run("-n", "3", SERVERS, "strategy.policy=sync", "--heartbeat", "0s")
        self.read_until(run, "step", 20)
        process = ranks_of(run)[1]
        os.kill(process, signal.SIGSTOP)
        time.sleep(0.5)  # the pause itself
        os.kill(process, signal.SIGCONT)
        code, records, err = self.outcome_of(run)
        self.assertEqual(code, 0, err)
        self.assertEqual(records[-1]["steps"], STEPS)


if __name__ == "__main__":
    main()
