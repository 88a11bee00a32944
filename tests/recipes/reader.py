"""A judge whose preferences are known, for recipes that make records of pairs."""

from types import SimpleNamespace

import numpy as np
import pandas as pd


class Reader:
    """Prefers the longer text by 0.1 log-odds a word and gives the first place `first`; a subclass finds the texts."""

    first = 0.5

    def __init__(self, name="reader", mass=0.9):
        self.weights, self.mass = SimpleNamespace(name=name), mass

    def texts(self, prompt):
        raise NotImplementedError

    def label_logprobs(self, prompts, labels, **_):
        texts = [p[0]["content"] for p in prompts]
        words = [[len(part.split()) for part in self.texts(text)] for text in texts]
        odds = np.array([0.1 * (a - b) + self.first for a, b in words])
        frame = pd.DataFrame({f"logp_{labels[0]}": odds, f"logp_{labels[1]}": 0.0, "in_label_mass": self.mass})
        frame = frame.assign(logsumexp=0.0, n_tokens=1, prompt_digest=[str(hash(t)) for t in texts])
        frame.attrs["run"] = {}
        return frame

    def made(self, run, *, started, command):
        fields = {"origin": "test", "weights": "none", "dtype": "none", "versions": {}, "hardware": "none"}
        return fields | {"seconds": 0.0, "date": "2026-01-01", "command": command}
