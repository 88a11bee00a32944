"""The toy model of the inference tests, as a base to train."""

from tests.inference.conftest import make_model, tokenizer, toy_folder

__all__ = ["make_model", "tokenizer", "toy_folder"]
