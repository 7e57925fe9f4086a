"""What signals do to a run of `stormo train`: those of schedulers save it, too."""

import json
import os
import signal

from train_cli import DEADLINE_S, TrainTest, main, ranks_of

MANY_STEPS = "steps=1000000"


class SignalTest(TrainTest):
    def started(self, *arguments):
        """A run that has done its first step."""
        job = self.start("mlp.toml", "--json", *arguments)
        self.read_until(job, "step")
        return job

    def manifests(self, directory):
        return {path.parent.name for path in (self.folder / directory).glob("step-*/manifest.json")}

    def test_schedulers_signals_save_and_end_the_run(self):
        for ranks, number in (("1", signal.SIGUSR1), ("2", signal.SIGUSR1), ("2", signal.SIGUSR2),
                              ("2", signal.SIGXCPU)):
            directory = f"run{number}.{ranks}"
            job = self.started("-n", ranks, MANY_STEPS, "--checkpoint", directory)
            job.send_signal(number)
            output, errors = job.communicate(timeout=DEADLINE_S)
            self.assertEqual(job.returncode, 143, errors)
            self.assertEqual(json.loads(output.splitlines()[-1])["event"], "end")
            self.assertEqual(len(self.manifests(directory)), 1)

    def test_sigusr1_can_ask_for_a_save_alone(self):
        for ranks in ("1", "2"):
            directory = f"save{ranks}"
            job = self.started("-n", ranks, MANY_STEPS, "--checkpoint", directory, "--on-usr1", "save")
            job.send_signal(signal.SIGUSR1)
            while not self.manifests(directory):
                self.assertEqual(json.loads(job.stdout.readline())["event"], "step")
            for _ in range(3):
                self.assertEqual(json.loads(job.stdout.readline())["event"], "step")
            job.terminate()
            job.communicate(timeout=DEADLINE_S)
            self.assertEqual(job.returncode, 143)

    def test_ranks_whose_parameters_are_equal_nowhere_meet_first(self):
        """A run whose ranks end with different weights fails."""
        streaming = ("strategy.kind=parameter_averaging", "strategy.outer=nesterov", "strategy.period=8",
                     "strategy.fragments=2", "strategy.delay=3")
        job = self.started("-n", "2", MANY_STEPS, *streaming, "--checkpoint", "streamed", "--on-usr1", "save")
        job.send_signal(signal.SIGUSR1)
        while not self.manifests("streamed"):
            self.assertEqual(json.loads(job.stdout.readline())["event"], "step")
        job.terminate()
        output, errors = job.communicate(timeout=DEADLINE_S)
        self.assertEqual(job.returncode, 143, errors)
        self.assertEqual(json.loads(output.splitlines()[-1])["event"], "end")

    def test_sigusr1_can_be_ignored(self):
        job = self.started("-n", "2", "steps=60", "--checkpoint", "ignored", "--on-usr1", "ignore")
        job.send_signal(signal.SIGUSR1)
        self.assertEqual(self.read_until(job, "end")["steps"], 60)
        self.assertEqual(job.wait(DEADLINE_S), 0)

    def test_those_that_were_ignored_at_the_start_stay_so(self):
        ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
        for more in (("-n", "1"), ("-n", "2"), ("-n", "3", "strategy.kind=parameter_server", "strategy.server_processes=1")):
            job = self.start("mlp.toml", "--json", "steps=2000", "checkpoint.directory=", *more,
                             preexec_fn=lambda: [signal.signal(number, signal.SIG_IGN) for number in ignored])
            self.read_until(job, "step")
            for pid in {job.pid, *ranks_of(job).values()}:
                for number in ignored:
                    os.kill(pid, number)
            self.assertEqual(self.read_until(job, "end")["steps"], 2000)
            job.communicate(timeout=DEADLINE_S)
            self.assertEqual(job.returncode, 0)

    def test_another_answer_is_refused(self):
        self.assertIn("--on-usr1", self.refused("mlp.toml", "--on-usr1", "die"))


if __name__ == "__main__":
    main()
