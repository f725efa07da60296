"""Measurements of speed and memory: `python -m benchmarks cpu` on any machine, `gpu` on one with CUDA."""
