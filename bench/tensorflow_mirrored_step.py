"""The opponent tensorflow_mirrored of `stormo bench async`: TensorFlow's MultiWorkerMirroredStrategy.

Arguments: WORKERS INPUTS_FILE DESCRIPTION. This process starts the workers. Each has all parameters, and a step ends
with a sum of the gradients over all workers (a ring over gRPC) and plain SGD by their mean. Only fully connected
models. Every worker prints one JSON object.
"""
import json
import os
import subprocess
import sys
import time

from tensorflow_ps_step import free_addresses, loss_of, number, read_inputs
import numpy
import tensorflow as tf


def make_step(strategy, layers, lr, workers):
    with strategy.scope():
        weights = [(tf.Variable(matrix), tf.Variable(bias)) for matrix, bias in layers]
    variables = [v for pair in weights for v in pair]

    def update(variable, gradient):
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=lr / workers, delta=gradient)

    def update_all(_, gradients):
        sums = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, list(zip(gradients, variables)))
        for variable, gradient in zip(variables, sums):
            strategy.extended.update(variable, update, args=(gradient,))

    def train_batch(x, targets):
        with tf.GradientTape() as tape:
            loss = loss_of(weights, x, targets)
        tf.distribute.get_replica_context().merge_call(update_all, args=(tape.gradient(loss, variables),))
        return loss

    @tf.function
    def step(iterator):
        return strategy.run(train_batch, args=next(iterator))

    return step


def work(worker, workers, path, d):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING))
    layers, batches = read_inputs(path, d)
    step = make_step(strategy, layers, d["optimizer"]["lr"], workers)
    inputs, targets = (numpy.stack(side) for side in zip(*batches))
    iterator = iter(tf.data.Dataset.from_tensor_slices((inputs, targets)).repeat().prefetch(1))
    times, losses = [], []
    for _ in range(d["warmup"] + d["steps"] + 1):
        losses.append(float(step(iterator)))
        times.append(time.monotonic())
    first, last = losses[:d["batches"]], losses[-d["batches"]:]
    print(json.dumps({"worker": worker, "workers": 1, "times": times[d["warmup"]:],
                      "losses": [number(loss) for loss in losses[d["warmup"]:]],
                      "first_loss": number(sum(first) / len(first)),
                      "last_loss": number(sum(last) / len(last))}) + "\n", end="", flush=True)


def main():
    if "TF_CONFIG" in os.environ:
        return work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
    workers = int(sys.argv[1])
    addresses = free_addresses(workers)
    processes = []
    try:
        for i in range(workers):
            config = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}})
            processes.append(subprocess.Popen([sys.executable, __file__, str(i), *sys.argv[1:]],
                                              env={**os.environ, "TF_CONFIG": config}))
        # one that fails leaves the others waiting for it
        while not (failed := any(p.poll() for p in processes)) and any(p.poll() is None for p in processes):
            time.sleep(0.05)
    finally:
        for p in processes:
            p.kill()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
