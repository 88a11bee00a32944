"""The toy judge of the inference tests, for studies that make records."""

from tests.inference.conftest import make_judge, make_model, tokenizer

__all__ = ["make_judge", "make_model", "tokenizer"]
