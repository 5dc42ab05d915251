"""Makes the models that the files below tests/compat were made with. A change to these models would invalidate all of
those files."""

import tiny_model


def write_models(folder):
    """Writes `target` and `draft`, each with two layers and the same weights. They are smaller than those of the other
    tests, so that a checkpoint of them can be kept."""
    usual = tiny_model.HIDDEN, tiny_model.MLP
    tiny_model.HIDDEN, tiny_model.MLP = 8, 16
    try:
        tiny_model.write_tiny_model(folder / "target", layers=2, seed=1)
        # The draft has the target's own weights, so everything that it proposes is accepted.
        tiny_model.write_tiny_model(folder / "draft", layers=2, seed=1)
    finally:
        tiny_model.HIDDEN, tiny_model.MLP = usual
