"""The opponent tensorflow_ps of `stormo bench async`: TensorFlow's ParameterServerStrategy.

Arguments: WORKERS INPUTS_FILE DESCRIPTION. This process is the coordinator, which starts the workers and one parameter
server as processes, and gives each worker that is free the next step. The parameters lie on the server, a worker reads
them, and its gradients are applied there by plain SGD. Only fully connected models. Prints one JSON object, of all
workers together.
"""
import json
import math
import os
import socket
import subprocess
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["GRPC_VERBOSITY"] = "NONE"

import numpy
import tensorflow as tf


def free_addresses(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def serve(cluster, job, index):
    """A worker or the server: one thread for an operation, and as many operations at once as its users need."""
    workers = len(cluster["worker"])
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=workers + 1)
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc",
                         config=config).join()


def read_inputs(path, description):
    """Weights as [(matrix, bias)], and batches as (inputs, targets), from the file, in order."""
    data, offset = open(path, "rb").read(), 0

    def take(shape, dtype):
        nonlocal offset
        values = numpy.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)
        offset += values.nbytes
        return values

    sizes, batch = description["model"]["sizes"], description["batch"]
    layers = [(take((rows, columns), numpy.float32).T, take((rows,), numpy.float32))
              for columns, rows in zip(sizes, sizes[1:])]
    batches = [(take((batch, sizes[0]), numpy.float32), take((batch,), numpy.int64))
               for _ in range(description["batches"])]
    if offset != len(data):
        sys.exit(f"{len(data)} bytes of inputs, the model here takes {offset}")
    return layers, batches


def loss_of(weights, x, targets):
    for i, (matrix, bias) in enumerate(weights):
        x = tf.nn.bias_add(tf.matmul(tf.nn.relu(x) if i else x, matrix), bias)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, x))


def make_step(strategy, layers, lr):
    with strategy.scope():
        weights = [(tf.Variable(matrix), tf.Variable(bias)) for matrix, bias in layers]
    variables = [v for pair in weights for v in pair]

    def train_batch(x, targets):
        with tf.GradientTape() as tape:
            loss = loss_of(weights, x, targets)
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=lr, delta=gradient)
        return loss

    @tf.function
    def step(iterator):
        loss = strategy.run(train_batch, args=next(iterator))
        with tf.control_dependencies([loss]):
            return loss, tf.timestamp()

    return step


def coordinate(cluster, layers, batches, d):
    """Times and losses of all steps of all workers, in the order of their ends."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    step = make_step(strategy, layers, d["optimizer"]["lr"])
    inputs, targets = (numpy.stack(side) for side in zip(*batches))
    dataset = coordinator.create_per_worker_dataset(
        lambda: tf.data.Dataset.from_tensor_slices((inputs, targets)).repeat().prefetch(1))
    iterator = iter(dataset)
    done = [coordinator.schedule(step, args=(iterator,))
            for _ in range(len(cluster["worker"]) * (d["warmup"] + d["steps"] + 1))]
    coordinator.join()
    ends = sorted((float(when), float(loss)) for loss, when in (d.fetch() for d in done))
    return [when for when, _ in ends], [loss for _, loss in ends]


def number(loss):
    """For JSON, which has no numbers that are not finite."""
    return loss if math.isfinite(loss) else None


def main():
    if sys.argv[1] == "serve":
        return serve(json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    workers, d = int(sys.argv[1]), json.loads(sys.argv[3])
    layers, batches = read_inputs(sys.argv[2], d)
    addresses = free_addresses(workers + 1)
    cluster = {"worker": addresses[:workers], "ps": addresses[workers:]}
    tasks = [("worker", i) for i in range(workers)] + [("ps", 0)]
    servers = [subprocess.Popen([sys.executable, __file__, "serve", json.dumps(cluster), job, str(index)])
               for job, index in tasks]
    try:
        times, losses = coordinate(cluster, layers, batches, d)
    finally:
        for s in servers:
            s.kill()
    count, warmup = workers * d["batches"], workers * d["warmup"]
    first, last = losses[:count], losses[-count:]
    print(json.dumps({"worker": 0, "workers": workers, "times": times[warmup:],
                      "losses": [number(loss) for loss in losses[warmup:]],
                      "first_loss": number(sum(first) / count), "last_loss": number(sum(last) / count)}) + "\n",
          end="", flush=True)


if __name__ == "__main__":
    main()
