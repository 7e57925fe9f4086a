"""What `stormo train` prints, refuses and leaves behind."""

import json
import os
import re
import signal
import subprocess
import termios

from small_data import write_pictures
from train_cli import DEADLINE_S, MLP, REPOSITORY, TrainTest, main, open_terminal, ranks_of

RUNNING = ("mlp.toml", "-n", "2", "steps=20000", "--json")


class JsonTest(TrainTest):
    def test_lines_have_the_documented_shape(self):
        for ranks in ("1", "2"):
            lines = self.lines("mlp.toml", "-n", ranks, "--overwrite")
            self.assertEqual([line["event"] for line in lines],
                             ["start"] + ["step"] * 6 + ["eval", "end"])
            self.assertEqual(lines[0]["schema"], 1)
            self.assertEqual([line["step"] for line in lines[1:7]], [1, 2, 3, 4, 5, 6])
            self.assertEqual(lines[7]["split"], "test")
            self.assertIn("accuracy", lines[7])
            end = lines[-1]
            self.assertEqual(
                list(end),
                ["event", "steps", "samples", "wall_s", "samples_per_s", "train_loss",
                 "train_loss_steps", "skipped_steps", "val_loss", "test_accuracy", "weights_hash", "ranks", "hosts",
                 "bytes_sent_per_rank", "checkpoint"])
            self.assertEqual((end["steps"], end["samples"], end["ranks"]), (6, 48, int(ranks)))
            self.assertEqual(len(end["bytes_sent_per_rank"]), int(ranks))
            self.assertRegex(end["weights_hash"], "^[0-9a-f]{16}$")
            self.assertTrue((self.folder / end["checkpoint"] / "manifest.json").exists())

            steps = lines[1:7]
            self.assertAlmostEqual(end["train_loss"], sum(s["loss"] for s in steps) / 6)
            self.assertEqual(end["train_loss_steps"], 6)
            for step in steps:
                for lane, share in step["share"].items():
                    self.assertTrue(0 <= share <= 1, f"{lane}: {share}")

    def test_ranks_that_share_a_core_are_told_so_once(self):
        one_core = {min(os.sched_getaffinity(0))}
        run = self.start("mlp.toml", "-n", "2", preexec_fn=lambda: os.sched_setaffinity(0, one_core))
        _, err = run.communicate(timeout=DEADLINE_S)
        self.assertEqual(run.returncode, 0, err)
        self.assertEqual(re.findall("start (at most|fewer)", err), ["at most"])

    def test_losses_do_not_depend_on_the_number_of_ranks(self):
        losses = []
        for ranks in ("1", "2", "3"):
            lines = self.lines("mlp.toml", "-n", ranks, "precision=float64", "checkpoint.directory=")
            losses.append([line["loss"] for line in lines if line["event"] == "step"])
        for other in losses[1:]:
            for a, b in zip(losses[0], other, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-10 * abs(a))

    def test_text_run_shows_a_sample_and_its_validation_loss(self):
        done = self.stormo("train", "gpt.toml", "-n", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("validation loss", done.stderr)
        self.assertIn("a sample of what the model writes", done.stderr)
        self.assertNotIn("\x1b", done.stderr)

    def test_resume_goes_on_where_the_run_stopped(self):
        whole = self.lines("mlp.toml", "-n", "2", "--checkpoint", "whole")
        self.lines("mlp.toml", "-n", "2", "--checkpoint", "half", "steps=3")
        rest = self.lines("mlp.toml", "-n", "2", "--checkpoint", "half", "--resume")
        self.assertEqual(rest[0]["first_step"], 3)
        self.assertEqual([s["loss"] for s in whole if s["event"] == "step"][3:],
                         [s["loss"] for s in rest if s["event"] == "step"])
        self.assertEqual(whole[-1]["weights_hash"], rest[-1]["weights_hash"])

    def test_a_used_folder_is_resumed_or_overwritten_but_not_mixed(self):
        def shown():
            return json.loads(self.stormo("checkpoint", "inspect", "run", "--json").stdout)

        self.lines("mlp.toml")
        first = shown()
        for ranks in ("1", "2"):
            message = self.refused("mlp.toml", "-n", ranks, "steps=3", "lr=0.01")
            for part in ("run/step-00000006", "--resume", "--checkpoint DIR", "--overwrite"):
                self.assertIn(part, message)
        self.assertIn("give one", self.refused("mlp.toml", "--resume", "--overwrite"))
        # A shorter run replaces a longer one: the highest number of a step means nothing.
        fresh = self.lines("mlp.toml", "-n", "2", "--overwrite", "steps=3")
        self.assertEqual(fresh[0]["first_step"], 0)
        second = shown()
        self.assertEqual(second["step"], 3)
        self.assertNotEqual(first["run"], second["run"])
        self.assertEqual(sorted(p.name for p in (self.folder / "run").iterdir()), ["latest", "step-00000003"])
        self.assertEqual(self.lines("mlp.toml", "--resume")[0]["first_step"], 3)
        self.assertEqual((shown()["step"], shown()["run"]), (6, second["run"]))

    def test_a_failed_save_is_told_and_training_goes_on(self):
        process = self.start(*RUNNING, "checkpoint.every=1", "checkpoint.max_failures=1000000")
        self.read_until(process, "step")
        run = self.folder / "run"
        run.rename(self.folder / "aside")
        run.write_text("in the way")
        failed = self.read_until(process, "save_failed")
        self.assertEqual(list(failed), ["event", "step", "failures", "max_failures", "error"])
        self.assertEqual((failed["failures"], failed["max_failures"]), (1, 1000000))
        self.assertGreater(self.read_until(process, "step")["step"], failed["step"])
        run.unlink()
        (self.folder / "aside").rename(run)
        process.terminate()
        code, records, err = self.outcome_of(process)
        self.assertEqual(code, 143, err)
        last = next(record for record in records if record["event"] == "end")
        self.assertTrue((self.folder / last["checkpoint"] / "manifest.json").exists())
        self.assertIn(f"the checkpoint after step {failed['step']} failed (1 in a row", err)

    def test_a_lost_peer_gives_75_once_a_checkpoint_is_there(self):
        for victim, signal_number in ((0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)):
            with self.subTest(victim=victim, signal=signal_number):
                process = self.start(*RUNNING, "checkpoint.every=5", "--overwrite")
                self.read_until(process, "step", 20)
                os.kill(ranks_of(process)[victim], signal_number)
                _, err = process.communicate(timeout=DEADLINE_S)
                self.assertEqual(process.returncode, 75, err)
                found = re.search(r"the run can go on from (run/step-\d+): .*--resume", err)
                self.assertTrue(found, err)
                self.assertEqual(err.count("can go on from"), 1)
                step = int(found.group(1)[-8:])
                again = self.lines("mlp.toml", "-n", "2", "--resume", f"steps={step + 2}")
                self.assertEqual(again[0]["first_step"], step)

    def test_a_lost_peer_before_the_first_checkpoint_gives_1(self):
        process = self.start(*RUNNING)
        self.read_until(process, "step")
        os.kill(ranks_of(process)[1], signal.SIGKILL)
        _, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 1, err)
        self.assertNotIn("can go on", err)

    def test_a_trace_has_every_rank_on_one_clock(self):
        for ahead in (0, 1):
            done = self.stormo("train", "gpt.toml", "-n", "2", "strategy.pipeline=2", "train.micro_batches=2",
                               "--trace", "out.json", "--overwrite", environment=self.clock_ahead(ahead))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assert_causal(self.folder / "out.json")


class DryRunTest(TrainTest):
    def test_prints_recipe_and_plan_and_starts_nothing(self):
        before = sorted(self.folder.rglob("*"))
        done = self.stormo("train", "mlp.toml", "-n", "4", "--dry-run", "steps=40")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("steps = 40", done.stdout)
        self.assertIn("host_shared", done.stdout)
        self.assertEqual(before, sorted(self.folder.rglob("*")))

    def test_every_recipe_of_the_repository_is_valid(self):
        (self.folder / "films").mkdir()
        for part in ("train", "dev", "test"):
            (self.folder / "films" / f"{part}.tsv").write_text("good\t1\nbad\t0\n")
        data = {"mnist": "data/mnist", "mnist_mlp": "data/mnist", "mnist_delayed": "data/mnist",
                "gpt_shakespeare": "text", "gpt_downpour": "text", "gpt_diloco": "text",
                "gpt_streaming": "text",
                "gpt_pipeline": "text", "gpt_tensor": "text", "gpt_3d": "text", "mnist_lbfgs": "data/mnist",
                "sst2": "films"}
        for recipe in sorted((REPOSITORY / "recipes").glob("*.toml")):
            path = [f"data.path={data[recipe.stem]}"] if recipe.stem in data else []
            ranks = "4" if recipe.stem == "gpt_3d" else "2"
            done = self.stormo("train", str(recipe), "-n", ranks, "--dry-run", "--json", *path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["event"], "dry_run")

    def test_the_reference_in_the_docs_is_the_programs(self):
        done = self.stormo("train", "--help-recipe")
        self.assertEqual(done.returncode, 0)
        self.assertIn(done.stdout, (REPOSITORY / "docs" / "recipes.md").read_text())


class ErrorTest(TrainTest):
    def error(self, *arguments, code):
        """The last line of a run that fails: the only one that says so."""
        done = self.stormo("train", *arguments, "--json")
        self.assertEqual(done.returncode, code, done.stderr)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([e["event"] for e in events].count("error"), 1, done.stdout)
        self.assertEqual(events[-1]["event"], "error")
        self.assertEqual(events[-1]["exit_code"], code)
        self.assertIn(events[-1]["message"].splitlines()[0], done.stderr)
        return events[-1]["message"], [e["event"] for e in events]

    def test_what_is_refused_before_the_start_is_2(self):
        message, events = self.error("mlp.toml", "data.path=nowhere", code=2)
        self.assertIn("no MNIST file", message)
        self.assertEqual(events, ["error"])

    def test_a_run_that_had_started_fails_with_1(self):
        write_pictures(self.folder / "pictures", ("cats", "dogs"), 8, 8, (20, 220, 40, 180))
        broken = self.folder / "pictures" / "dogs" / "3.png"
        broken.write_bytes(broken.read_bytes()[:-20])  # found when it is used
        for ranks in ("1", "2"):
            message, events = self.error(
                "mlp.toml", "-n", ranks, "data.kind=image_folder", "data.path=pictures",
                "data.image=1,28,28", "batch=2", "steps=20", "checkpoint.directory=", code=1)
            self.assertIn("dogs/3.png", message)
            self.assertEqual(events[0], "start")

    def test_the_launcher_speaks_for_a_rank_0_that_cannot(self):
        process = self.start("mlp.toml", "-n", "2", "steps=1000000", "--json", stderr=subprocess.DEVNULL)
        events = [json.loads(process.stdout.readline())["event"] for _ in range(3)]
        self.assertEqual(events, ["start", "step", "step"])
        os.kill(ranks_of(process)[0], signal.SIGKILL)
        rest = process.stdout.read().splitlines()
        self.assertEqual(process.wait(timeout=DEADLINE_S), 1)
        last = json.loads(rest[-1])
        self.assertEqual((last["event"], last["exit_code"]), ("error", 1))
        self.assertIn("rank 0", last["message"])
        self.assertIn("SIGKILL", last["message"])


class TerminalTest(TrainTest):
    def test_the_line_moves_between_logged_steps(self):
        master, slave = open_terminal()
        termios.tcsetwinsize(slave, (24, 80))
        process = self.start("mlp.toml", "-n", "2", "steps=100000", "log_every=100000",
                             environment={"TERM": "xterm"}, stderr=slave, stdout=subprocess.DEVNULL)
        os.close(slave)
        shown = b""
        while len(set(re.findall(rb"\] step +(\d+)/", shown))) < 3:
            shown += os.read(master, 4096)
        process.terminate()
        while True:
            try:
                if not os.read(master, 4096):
                    break
            except OSError:  # nobody writes to it any more
                break
        self.assertEqual(process.wait(timeout=DEADLINE_S), 143)
        os.close(master)


class BadInputTest(TrainTest):
    def test_unknown_key_names_the_nearest(self):
        self.assertIn("did you mean 'train.steps'", self.refused("mlp.toml", "stpes=3"))

    def test_wrong_type(self):
        self.assertIn("must be whole number", self.refused("mlp.toml", "steps=many"))

    def test_several_errors_at_once_are_all_listed(self):
        text = MLP.replace("steps = 6", "stepz = 6").replace('"mlp"', '"mpl"')
        (self.folder / "bad.toml").write_text(text)
        message = self.refused("bad.toml", "optimizer.lr=fast", "-n", "0")
        for part in ("bad.toml:7:1: unknown key 'train.stepz'", "model.kind", "optimizer.lr", "-n 0"):
            self.assertIn(part, message)

    def test_no_such_recipe(self):
        message = self.refused("nowhere.toml")
        self.assertIn("nowhere.toml does not exist", message)
        self.assertEqual(len(message.splitlines()), 1, message)  # nothing of what defaults lack

    def test_a_recipe_that_is_no_toml(self):
        (self.folder / "bad.toml").write_text("schema_version = 1\nname = = 3\n")
        message = self.refused("bad.toml")
        self.assertIn("bad.toml:2:", message)
        self.assertEqual(len(message.splitlines()), 1, message)

    def test_missing_data(self):
        self.assertIn("data.path", self.refused("mlp.toml", "-n", "2", "data.path=nowhere"))

    def test_truncated_idx(self):
        path = self.folder / "data" / "mnist" / "train-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:-5])
        self.assertIn("train-images", self.refused("mlp.toml", "-n", "2"))

    def test_idx_with_wrong_magic(self):
        path = self.folder / "data" / "mnist" / "t10k-labels-idx1-ubyte"
        path.write_bytes(b"\x01" + path.read_bytes()[1:])
        self.assertIn("t10k-labels", self.refused("mlp.toml", "-n", "2"))

    def test_empty_text(self):
        (self.folder / "text" / "a.txt").write_text("")
        self.assertIn("text", self.refused("gpt.toml", "-n", "2"))

    def test_batch_smaller_than_ranks(self):
        self.assertIn("batch", self.refused("mlp.toml", "-n", "3", "batch=2"))

    def test_numbers_of_ranks(self):
        for ranks in ("0", "100000"):
            self.assertIn(f"-n {ranks}", self.refused("mlp.toml", "-n", ranks))
        for ranks in ("-1", "x"):
            self.assertRegex(self.refused("mlp.toml", "-n", ranks), "-n|--ranks")

    def test_heads_do_not_divide_width(self):
        self.assertIn("model.heads", self.refused("gpt.toml", "model.heads=3"))

    def test_model_and_data_do_not_fit(self):
        self.assertIn("cannot learn from", self.refused("mlp.toml", "data.kind=text", "data.path=text"))

    def test_unwritable_checkpoint_directory(self):
        (self.folder / "file").write_text("")
        message = self.refused("mlp.toml", "-n", "2", "checkpoint.directory=file/below")
        self.assertIn("file/below", message)

    def test_resume_without_a_checkpoint(self):
        self.assertIn("no complete checkpoint", self.refused("mlp.toml", "--resume"))

    def test_resume_from_a_damaged_checkpoint(self):
        checkpoint = self.folder / self.lines("mlp.toml")[-1]["checkpoint"]
        for file in ("shard-00000.safetensors", "manifest.json"):
            whole = (checkpoint / file).read_bytes()
            flipped = bytearray(whole)
            flipped[len(flipped) // 2] ^= 1
            for damaged in (whole[: len(whole) // 2], bytes(flipped)):
                (checkpoint / file).write_bytes(damaged)
                self.assertIn(file, self.refused("mlp.toml", "-n", "2", "--resume"))
            (checkpoint / file).write_bytes(whole)

    def test_resume_from_a_foreign_checkpoint(self):
        self.lines("mlp.toml")
        message = self.refused("mlp.toml", "-n", "2", "--resume", "name=other")
        self.assertIn("was written by 'small'", message)
        message = self.refused("mlp.toml", "-n", "2", "--resume", "model.sizes=784,8,10")
        self.assertIn("model", message)

    def test_trace_into_a_missing_folder(self):
        self.assertIn("--trace", self.refused("mlp.toml", "--trace", "no/such/out.json"))


if __name__ == "__main__":
    main()
