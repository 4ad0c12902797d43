"""Train with ParameterServerStrategy, which keeps the variables on servers; workers are asynchronous.

The chief distributes the steps and computes none itself. A process finds the cluster in TF_CONFIG.
"""

from collections import Counter

import tensorflow as tf

from patterns import CLASSES, POINTS, samples

EPOCHS = 3
STEPS = 60
BATCH = 32
RATE = 0.1


def serve(cluster: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Runs a worker or a parameter server, which executes the chief's requests and never ends by itself."""
    server = tf.distribute.Server(
        cluster.cluster_spec(), job_name=cluster.task_type, task_index=cluster.task_id, protocol="grpc"
    )
    server.join()


def batches() -> tf.data.Dataset:
    """Returns a worker's data, generated on the worker, with the name of its host in each batch."""
    host = tf.strings.strip(tf.io.read_file("/proc/sys/kernel/hostname"))
    examples = tf.data.Dataset.from_tensor_slices(samples(6144, seed=1)).shuffle(6144).repeat().batch(BATCH)
    return examples.map(lambda points, labels: (points, labels, host))


def lead(cluster: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Runs the chief."""
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = tf.Variable(tf.zeros((POINTS, CLASSES)), name="weights")
        bias = tf.Variable(tf.zeros(CLASSES), name="bias")
    for variable in (weights, bias):
        print(f"{variable.name} lies on {variable.device}", flush=True)

    @tf.function
    def step(data):
        points, labels, host = next(data)
        with tf.GradientTape() as tape:
            logits = points @ weights + bias
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for variable, gradient in zip((weights, bias), tape.gradient(loss, (weights, bias)), strict=True):
            variable.assign_sub(RATE * gradient)
        return loss, host

    data = iter(coordinator.create_per_worker_dataset(batches))
    taken = Counter()
    for epoch in range(EPOCHS):
        scheduled = [coordinator.schedule(step, args=(data,)) for _ in range(STEPS)]
        coordinator.join()
        done = [result.fetch() for result in scheduled]
        taken.update(host.decode() for _, host in done)
        print(f"epoch {epoch + 1} loss {sum(loss for loss, _ in done) / STEPS:.4f}", flush=True)

    for host, steps in sorted(taken.items()):
        print(f"{steps} steps on {host}", flush=True)
    points, labels = samples(1024, seed=2)
    found = tf.argmax(points @ weights + bias, axis=1)
    print(f"test accuracy {tf.reduce_mean(tf.cast(found == labels, tf.float32)):.4f}", flush=True)


def main() -> None:
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    members = ", ".join(f"{len(tasks)} {job}" for job, tasks in cluster.cluster_spec().as_dict().items())
    print(f"{cluster.task_type} {cluster.task_id} in a cluster of {members}", flush=True)
    if cluster.task_type in ("worker", "ps"):
        serve(cluster)
    else:
        lead(cluster)


if __name__ == "__main__":
    main()
