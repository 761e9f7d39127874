"""Training models on a bundle: `tinker` for RL, `sft` for a warm start, `evaluate` for held-out play. Import those.

This package itself needs no trainer; those three modules need tinker-cookbook.
"""
