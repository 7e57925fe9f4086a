"""The program is two: `stormo` runs without libtorch, and stormo-train does what needs it."""

import json
import os
import pathlib
import select
import shutil
import signal
import subprocess

from train_cli import DEADLINE_S, STORMO, TrainTest, main, ranks_of


def libraries_of(pid):
    """Names of the libtorch libraries that a process has mapped."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return {name for name in ("libtorch", "libc10") if f"/{name}" in maps}


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class TwoProgramsTest(TrainTest):
    def test_stormo_is_not_linked_with_libtorch(self):
        needed = subprocess.run(["ldd", STORMO], capture_output=True, text=True, check=True).stdout
        self.assertIn("libcrypto", needed)
        self.assertNotIn("torch", needed)
        self.assertNotIn("libc10", needed)

    def test_the_launcher_of_ranks_has_no_libtorch_and_they_have_it(self):
        process = self.start("mlp.toml", "-n", "2", "steps=20000", "--json")
        self.read_until(process, "step")
        self.assertEqual(libraries_of(process.pid), set())
        ranks = ranks_of(process).values()
        for pid in ranks:
            self.assertIn("libtorch", libraries_of(pid))
        names = {pid: pathlib.Path(f"/proc/{pid}/comm").read_text() for pid in children_of(process.pid)}
        self.assertLessEqual(set(ranks), set(names))
        self.assertEqual({name for pid, name in names.items() if pid not in ranks}, {"stormo-guard\n"})
        process.terminate()
        process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 143)

    def test_what_n_says_comes_before_what_the_environment_says(self):
        def slurm(tasks):
            return {"SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": tasks,
                    "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1"}

        def torchrun(ranks):
            return {"RANK": "0", "WORLD_SIZE": ranks, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": ranks,
                    "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"}

        cluster = {"TF_CONFIG": json.dumps({"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}})}
        arguments = ("train", "mlp.toml", "steps=2", "checkpoint.directory=", "--json")
        for variables in (slurm("1"), torchrun("1"), cluster):
            for words, ranks in ((("-n", "2"), 2), (("-H", "localhost:2"), 2), (("-n", "1"), 1), ((), 1)):
                out, err = self.start_program(*arguments, *words, environment=variables).communicate(timeout=DEADLINE_S)
                self.assertEqual(json.loads(out.splitlines()[-1])["ranks"], ranks, err)
        for variables in (slurm("4"), torchrun("4")):
            for words in (("-n", "2"), ("-n", "1"), ("-H", "localhost:2,127.0.0.1:2")):
                process = self.start_program(*arguments, *words, environment=variables)
                _, err = process.communicate(timeout=DEADLINE_S)
                self.assertEqual(process.returncode, 2, err)
                for name in (" ".join(words), "rank 0 of 4", ", ".join(["SLURM_STEP_ID", "SLURM_PROCID"] if "SLURM_PROCID" in variables else ["RANK", "WORLD_SIZE"])):
                    self.assertIn(name, err)

    def test_a_dry_run_in_a_job_trains_nothing(self):
        torchrun = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"}
        for rank in ("0", "1"):
            done = self.start_program("train", "mlp.toml", "--dry-run", environment={**torchrun, "RANK": rank, "LOCAL_RANK": rank})
            out, err = done.communicate(timeout=DEADLINE_S)
            self.assertEqual((done.returncode, "# step plan of 2 ranks" in out), (0, rank == "0"), err)

    def test_a_closed_output_does_not_become_a_file_of_the_launcher(self):
        for closed in (1, 2):
            process = subprocess.run([STORMO, "train", "mlp.toml", "-n", "2", "steps=2", "checkpoint.directory="],
                                     cwd=self.folder, capture_output=True, text=True,
                                     preexec_fn=lambda fd=closed: os.close(fd))
            self.assertEqual(process.returncode, 0, process.stderr)

    def test_one_rank_is_the_process_that_was_started(self):
        process = self.start("mlp.toml", "steps=20000", "--json")
        self.read_until(process, "step")
        self.assertIn("libtorch", libraries_of(process.pid))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 130)

    def start_with_endless_check(self, *arguments):
        """A launcher, and the process of its check: a program in place of stormo-train that tells its pid and waits.
        It is a program of its own and no fork, as OpenMP binds threads."""
        folder = self.folder / "endless"
        folder.mkdir()
        shutil.copy(STORMO, folder)
        for pipe in ("pid", "never"):
            os.mkfifo(folder / pipe)
        check = folder / "stormo-train"
        check.write_text(f"#!/bin/sh\necho $$ >{folder}/pid\nexec cat {folder}/never\n")
        check.chmod(0o755)
        process = self.start("mlp.toml", "-n", "2", *arguments, executable=str(folder / "stormo"),
                             environment={"OMP_PROC_BIND": "false"})
        pid = int((folder / "pid").read_text())  # comes when the check writes
        self.assertEqual(children_of(process.pid), [pid])
        return process, pid

    def test_the_check_ends_with_the_launcher(self):
        process, check = self.start_with_endless_check()
        ends = os.pidfd_open(check)
        self.addCleanup(os.close, ends)
        process.kill()
        process.communicate(timeout=DEADLINE_S)
        self.assertTrue(select.select([ends], [], [], DEADLINE_S)[0])

    def test_a_check_that_is_killed_is_told(self):
        process, check = self.start_with_endless_check("--json")
        os.kill(check, signal.SIGKILL)
        out, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 1)
        self.assertIn("the check of the run was killed by signal 9", err)
        self.assertEqual(json.loads(out)["event"], "error")

    def test_a_script_is_no_recipe_and_a_folder_hides_none(self):
        (self.folder / "quickstart").write_text("#!/bin/sh\n")
        (self.folder / "mnist").mkdir()
        for command in (("train",), ("plan", "show")):
            done = self.stormo(*command, "quickstart")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("'quickstart' is a script, no recipe; the recipe of that name is 'quickstart.toml'", done.stderr)
        self.assertIn("no MNIST file", self.stormo("train", "mnist", "--dry-run", "data.path=.").stderr)

    def test_more_ranks_than_slots_are_refused_by_the_check_too(self):
        done = self.stormo("train", "mlp.toml", "-n", "4", "-H", "localhost:2", "--dry-run")
        self.assertEqual(done.returncode, 2)
        self.assertIn("-n 4 needs more than the 2 slots", done.stderr)

    def test_memory_of_other_hosts_is_not_this_ones(self):
        done = self.stormo("train", "mlp.toml", "-H", "far:1000,localhost:1", "--dry-run", "batch=2002")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1001 rank(s) on 2 host(s)", done.stdout)

    def test_the_part_with_libtorch_starts_no_ranks(self):
        train = pathlib.Path(STORMO).with_name("stormo-train")
        for command in (("train",), ("strads", "train")):
            done = subprocess.run([train, *command, "mlp.toml", "-n", "2"], cwd=self.folder, capture_output=True,
                                  text=True, timeout=DEADLINE_S, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("starts ranks; this part of it is one", done.stderr)

    def test_both_say_the_same_version_and_doctor_knows_libtorch(self):
        train = pathlib.Path(STORMO).with_name("stormo-train")
        versions = [subprocess.run([p, "--version"], capture_output=True, text=True, check=True).stdout
                    for p in (STORMO, train)]
        self.assertEqual(*versions)
        torch = json.loads(self.stormo("doctor", "--json").stdout)["torch"]
        self.assertIn(f"libtorch   {torch['version']}\n", versions[0])
        self.assertGreater(torch["threads"], 0)

    def test_without_its_other_half_it_says_so_and_does_the_rest(self):
        alone = self.folder / "bin" / "stormo"
        alone.parent.mkdir()
        shutil.copy(STORMO, alone)

        def run(*arguments):
            return subprocess.run([alone, *arguments], cwd=self.folder, capture_output=True, text=True,
                                  timeout=DEADLINE_S, check=False)

        for arguments in (("train", "mlp.toml"), ("train", "mlp.toml", "-n", "2"), ("evaluate", "run"),
                          ("predict", "run", "x.png"), ("sample", "run"), ("bench", "step"),
                          ("plan", "show", "mlp.toml"), ("simulate", "mlp.toml"),
                          ("replay", "record")):
            done = run(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertEqual(done.stdout, "")
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            if arguments == ("train", "mlp.toml"):
                self.assertEqual(json.loads(run(*arguments, "--json").stdout)["exit_code"], 2)
            for part in ("stormo-train, which is missing", f"{alone.parent}/stormo-train", "install all of Stormo"):
                self.assertIn(part, done.stderr)
        doctor = run("doctor", "--json")
        self.assertEqual(doctor.returncode, 1)
        self.assertIsNone(json.loads(doctor.stdout)["torch"])
        self.assertIn("stormo-train", json.loads(doctor.stdout)["findings"][-1]["what"])
        for arguments in (("--version",), ("train", "--help"), ("plan", "show", "ring_all_reduce"),
                          ("completion", "bash"), ("run", "-n", "2", "--", "true"),
                          ("bench", "barrier", "-n", "2", "--time", "1ms")):
            self.assertEqual(run(*arguments).returncode, 0, arguments)


if __name__ == "__main__":
    main()
