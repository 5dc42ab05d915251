"""Makes the models from which the files below tests/compat were made. A change of these models would invalidate all of
those files."""

import tiny_model


def write_models(folder):
    """Writes `target` and `draft`, two-layer models with the same weights. They are smaller than those of the other
    tests, so that a checkpoint of them can be kept in git."""
    usual = tiny_model.HIDDEN, tiny_model.MLP
    tiny_model.HIDDEN, tiny_model.MLP = 8, 16
    try:
        tiny_model.write_tiny_model(folder / "target", layers=2, seed=1)
        # The draft has the target's weights, so every drafted token is accepted.
        tiny_model.write_tiny_model(folder / "draft", layers=2, seed=1)
    finally:
        tiny_model.HIDDEN, tiny_model.MLP = usual
