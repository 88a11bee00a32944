"""The toy judge of the inference tests, for studies that make records, and the model behind it."""

from tests.inference.conftest import make_judge, make_model, tokenizer, toy_folder

__all__ = ["make_judge", "make_model", "tokenizer", "toy_folder"]
