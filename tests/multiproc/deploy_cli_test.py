"""What deploy/ has: each file is accepted by the program that it is for, or by its checker, and what it starts trains,
ends as the file expects when a rank is lost, and goes on.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import os
import pathlib
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import unittest

from tf_config_cli_test import free_port
from train_cli import DEADLINE_S, REPOSITORY, STORMO, TrainTest, main

try:
    import kubernetes_validate
    import yaml
except ImportError:
    kubernetes_validate = None

DEPLOY = REPOSITORY / "deploy"
FOR_EVER = "steps=300000"

# Starts the tasks of a step as srun does, two to a node; ends with the largest status. Killed by SIGTERM as by scancel.
SRUN = """#!/usr/bin/env python3
import os, signal, subprocess, sys
nodes, tasks = 2, 4
tasks_of = [subprocess.Popen(sys.argv[1:], env={**os.environ, "SLURM_STEP_ID": "0", "SLURM_PROCID": str(r),
    "SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_LOCALID": str(r % 2), "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_NODEID": str(r // 2), "SLURM_STEP_NUM_NODES": str(nodes)}) for r in range(tasks)]
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, _: [task.send_signal(number) for task in tasks_of])
with open("tasks.new", "w") as file:
    file.write(" ".join(str(task.pid) for task in tasks_of) + " " + str(os.getpid()))
os.rename("tasks.new", "tasks")
sys.exit(max(code if code >= 0 else 128 - code for code in [task.wait() for task in tasks_of]))
"""


def manifest(name):
    return yaml.safe_load((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())


class DeployTest(TrainTest):
    def wait_for(self, there, process):
        """Until a file is there that `process` or those that it starts write."""
        while not there.exists():
            if process.poll() is not None:
                self.fail(f"it has ended before: {process.communicate()}")
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                pass

    @staticmethod
    def step(latest):
        return int(latest.readlink().name.removeprefix("step-"))

    def script(self, name, text):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def saved(self):
        return self.folder / "run" / "latest"


class SlurmTest(DeployTest):
    def setUp(self):
        super().setUp()
        self.script("srun", SRUN)
        self.script("scontrol", '#!/bin/sh\necho "$@" >>requeued\n')

    def submit(self, *arguments, restart=0):
        """The batch script, as Slurm runs a copy of it on the first node."""
        copy = self.folder / "slurm_script"
        shutil.copy(DEPLOY / "slurm" / "train.sbatch", copy)
        (self.folder / "tasks").unlink(missing_ok=True)
        process = subprocess.Popen(
            ["bash", copy, *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "STORMO": STORMO, "SLURM_JOB_ID": "17",
                 "SLURM_RESTART_COUNT": str(restart), "STORMO_INTERFACE": "lo", "OMP_NUM_THREADS": "1"})
        self.enterContext(process)
        self.addCleanup(process.kill)
        return process

    def tasks(self, process):
        self.wait_for(self.folder / "tasks", process)
        *tasks, step = (int(word) for word in (self.folder / "tasks").read_text().split())
        self.addCleanup(lambda: [self.kill(task) for task in tasks])
        return tasks, step

    @staticmethod
    def kill(pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def started(self, *arguments, **how):
        process = self.submit("mlp.toml", FOR_EVER, "checkpoint.every=10", *arguments, **how)
        tasks, step = self.tasks(process)
        self.wait_for(self.saved(), process)
        return process, tasks, step

    def requeued(self):
        file = self.folder / "requeued"
        return file.read_text().split() if file.exists() else []

    def end(self, process, status):
        out, _ = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, status, out)

    def test_a_lost_rank_starts_the_job_again_from_its_checkpoint(self):
        process, tasks, _ = self.started()
        os.kill(tasks[3], signal.SIGKILL)
        self.end(process, 128 + signal.SIGKILL)
        self.assertEqual(self.requeued(), ["requeue", "17"])

    def test_a_job_that_fails_again_and_again_ends(self):
        process, tasks, _ = self.started(restart=20)
        os.kill(tasks[3], signal.SIGKILL)
        self.end(process, 128 + signal.SIGKILL)
        self.assertEqual(self.requeued(), [])

    def test_the_time_limit_saves_and_starts_the_job_again(self):
        process, _, step = self.started()
        os.kill(step, signal.SIGUSR1)
        self.end(process, 143)
        self.assertEqual(self.requeued(), ["requeue", "17"])
        at = self.step(self.saved())
        self.end(self.submit("mlp.toml", f"steps={at + 5}", "--accept-changes", "steps", restart=1), 0)
        self.assertEqual(self.step(self.saved()), at + 5)

    def test_a_cancelled_job_stays_so(self):
        process, _, step = self.started()
        process.send_signal(signal.SIGTERM)
        os.kill(step, signal.SIGTERM)
        self.end(process, 143)
        self.assertEqual(self.requeued(), [])

    def test_a_wrong_recipe_is_not_tried_again(self):
        self.end(self.submit("mlp.toml", "train.stepz=1"), 2)
        self.end(self.submit(), 2)
        self.assertEqual(self.requeued(), [])


@unittest.skipIf(kubernetes_validate is None, "set-up: this Python has no kubernetes-validate")
class KubernetesTest(DeployTest):
    def test_the_manifests_are_those_of_kubernetes(self):
        for name in ("job", "service", "runs"):
            kubernetes_validate.validate(manifest(name), kubernetes_validate.latest_version(), strict=True)

    def test_names_fit_together(self):
        kustomization, job, service = manifest("kustomization"), manifest("job"), manifest("service")
        files = {f"{name}.yaml" for name in ("job", "service", "runs")}
        self.assertEqual(set(kustomization["resources"]), files)
        pod = job["spec"]["template"]["spec"]
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        self.assertEqual(service["spec"]["selector"], {"job-name": job["metadata"]["name"]})
        made = {one["name"] for kind in ("configMapGenerator", "secretGenerator") for one in kustomization[kind]}
        used = {volume.get("configMap", {}).get("name") or volume.get("secret", {}).get("secretName")
                for volume in pod["volumes"]} - {None}
        self.assertEqual(made, used)
        self.assertEqual({mount["name"] for mount in pod["containers"][0]["volumeMounts"]},
                         {volume["name"] for volume in pod["volumes"]})
        ignored = (REPOSITORY / ".gitignore").read_text().splitlines()
        for generator in ("configMapGenerator", "secretGenerator"):
            for one in kustomization[generator]:
                self.assertTrue({f"/deploy/kubernetes/{file}" for file in one["files"]} <= set(ignored))

    def test_a_lost_pod_is_made_again_and_training_goes_on(self):
        job = manifest("job")["spec"]
        self.assertEqual((job["completions"], job["parallelism"]), (2, 2))
        pods = [self.pod(job, index, FOR_EVER, "checkpoint.every=10") for index in range(2)]
        latest = self.folder / "runs" / "stormo" / "latest"
        self.wait_for(latest, pods[0])
        pods[1].kill()
        _, err = pods[0].communicate(timeout=DEADLINE_S)
        self.assertEqual(self.action(job, pods[0].returncode), "Ignore", err)
        at = self.step(latest)
        again = [self.pod(job, index, f"steps={at + 5}", "--accept-changes", "steps") for index in range(2)]
        for pod in again:
            _, err = pod.communicate(timeout=DEADLINE_S)
            self.assertEqual(pod.returncode, 0, err)
        self.assertEqual(self.step(latest), at + 5)

    def test_a_wrong_recipe_fails_the_job(self):
        job = manifest("job")["spec"]
        for pod in [self.pod(job, index, "train.stepz=1") for index in range(2)]:
            _, err = pod.communicate(timeout=DEADLINE_S)
            self.assertEqual(self.action(job, pod.returncode), "FailJob", err)

    def pod(self, job, index, *arguments):
        """Its container, with what Kubernetes gives it; folders and names of hosts are those of this machine."""
        for name in ("recipe", "secret", f"pod-{index}"):
            (self.folder / name).mkdir(exist_ok=True)
        shutil.copy(self.folder / "mlp.toml", self.folder / "recipe" / "recipe.toml")
        secret = self.folder / "secret" / "secret"
        if not secret.exists():
            secret.write_text(secrets.token_hex(32))
        ports = self.__dict__.setdefault("ports", [free_port(), free_port()])
        container = job["template"]["spec"]["containers"][0]

        def here(text):
            for i, port in enumerate(ports):
                text = text.replace(f"stormo-{i}.stormo:29500", f"127.0.0.{i + 1}:{port}")
            folders = {"/tmp": f"/pod-{index}", "/recipe": "/recipe", "/secret": "/secret", "/runs": "/runs",
                       "/data": "/data/mnist"}
            for path, there in folders.items():
                text = re.sub(rf"(?<![\w/]){path}\b", f"{self.folder}{there}", text)
            return text

        environment = {"INDEX": str(index)}
        for one in container["env"]:
            if "value" in one:
                environment[one["name"]] = here(one["value"].replace("$(INDEX)", str(index)))
        *shell, script = container["command"]
        script = here(script.strip()).replace("exec stormo", f"exec {shlex.quote(STORMO)}")
        script += " " + shlex.join(arguments)
        process = subprocess.Popen([*shell, script], cwd=self.folder, text=True, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, env={**os.environ, "STORMO_THREADS": "1", **environment})
        self.enterContext(process)
        self.addCleanup(process.kill)
        return process

    @staticmethod
    def action(job, code):
        for rule in job["podFailurePolicy"]["rules"]:
            if code in rule.get("onExitCodes", {}).get("values", []):
                return rule["action"]
        return "Count"


class SystemdTest(DeployTest):
    UNIT = DEPLOY / "systemd" / "stormo-train@.service"

    def setting(self, name):
        return re.search(rf"^{name}=(.*)$", self.UNIT.read_text(), re.MULTILINE)[1]

    def test_systemd_accepts_the_unit(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("set-up: systemd-analyze is not there")
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder, "stormo-train@one.service")
            unit.write_text(self.UNIT.read_text().replace("/usr/local/bin/stormo", "/bin/true"))
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True,
                                  timeout=DEADLINE_S, check=False)
            complaints = [line for line in done.stderr.splitlines() if "stormo-train" in line]
            self.assertEqual((done.returncode, complaints), (0, []), done.stderr)

    def test_its_command_ends_as_the_unit_expects(self):
        command = self.setting("ExecStart").replace("/etc/stormo/%i.toml", "mlp.toml").replace("$STORMO_ARGUMENTS", "-n 2")
        program, *arguments = shlex.split(command)
        self.assertEqual(program, "/usr/local/bin/stormo")
        for number, setting, code in ((signal.SIGTERM, "SuccessExitStatus", 143), (None, "RestartForceExitStatus", 75)):
            run = self.start_program(*arguments, FOR_EVER, "checkpoint.every=10", "--json")
            self.read_until_saved(run)
            if number is None:
                self.assert_killed_rank_ends(run)
            else:
                run.send_signal(number)
                run.communicate(timeout=DEADLINE_S)
            self.assertEqual(run.returncode, code)
            self.assertEqual(self.setting(setting), str(code))


class ContainerTest(unittest.TestCase):
    def test_its_versions_are_those_of_the_set_up(self):
        text = (DEPLOY / "container" / "Containerfile").read_text()
        set_up = (REPOSITORY / "tools" / "setup.sh").read_text()
        self.assertEqual(re.search(r"ARG TORCH=(.*)", text)[1], re.search(r"stormo_torch_version=(.*)", set_up)[1])


if __name__ == "__main__":
    main()
