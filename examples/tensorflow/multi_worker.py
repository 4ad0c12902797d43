"""Train with MultiWorkerMirroredStrategy, which averages the gradients of all workers in every step.

A process finds the cluster in TF_CONFIG, which TensorFlow reads by itself. The training loop is custom, because `fit`
of Keras 3.15 fails with this strategy.
"""

import tensorflow as tf

from patterns import CLASSES, POINTS, samples

EPOCHS = 3
BATCH = 32
RATE = 0.1


def share(worker: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns a worker's own part of the data, in batches."""
    dataset = tf.data.Dataset.from_tensor_slices(samples(6144, seed=1))
    return dataset.shard(worker.num_input_pipelines, worker.input_pipeline_id).batch(BATCH)


def main() -> None:
    # The strategy must be created first, because its creation waits for the other workers.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = strategy.cluster_resolver
    print(f"{task.task_type} {task.task_id}: {strategy.num_replicas_in_sync} train together", flush=True)

    with strategy.scope():
        # The updates of all workers are averaged before they are subtracted.
        weights = tf.Variable(tf.zeros((POINTS, CLASSES)), aggregation=tf.VariableAggregation.MEAN)
        bias = tf.Variable(tf.zeros(CLASSES), aggregation=tf.VariableAggregation.MEAN)

    def step(points, labels):
        with tf.GradientTape() as tape:
            logits = points @ weights + bias
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for variable, gradient in zip((weights, bias), tape.gradient(loss, (weights, bias)), strict=True):
            variable.assign_sub(RATE * gradient)
        return loss

    @tf.function
    def train(data):
        total, steps = 0.0, 0.0
        for batch in data:
            total += strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(step, args=batch), axis=None)
            steps += 1.0
        return total / steps

    data = strategy.distribute_datasets_from_function(share)
    for epoch in range(EPOCHS):
        print(f"epoch {epoch + 1} loss {train(data):.4f}", flush=True)

    points, labels = samples(1024, seed=2)
    found = tf.argmax(points @ weights + bias, axis=1)
    print(f"test accuracy {tf.reduce_mean(tf.cast(found == labels, tf.float32)):.4f}", flush=True)


if __name__ == "__main__":
    main()
