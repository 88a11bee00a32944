"""Reproduce what papers claim about the bias of LLM judges, with intervals and machine verdicts.

Importing this package loads the standard library only: import the module you need, such as `reprolib.metrics.leakage`.
"""
