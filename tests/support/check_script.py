"""A user's script with optimizers, for the ``check`` command."""

SCRIPT = """
    import sys

    import optax
    import optax_dtypefix  # Does nothing in the stock process.

    def inject():
        return optax.inject_hyperparams(optax.adamw)(learning_rate=1e-2)

    def adamw():
        return optax.adamw(1e-3)

    def momentum():
        return optax.sgd(1e-2, momentum=0.99)

    def small():
        return optax.sgd(optax.constant_schedule(1e-3))

    tx = optax.sgd(0.1)

    def scheduled(steps, *, peak, warmup=10):
        return optax.sgd(peak)

    class Holder:
        tx = optax.sgd(0.1)

    state = Holder()
    number = 3
    argv = list(sys.argv)

    def schedule():
        return 0.1

    if __name__ == "__main__":
        raise SystemExit("the script runs")
"""
