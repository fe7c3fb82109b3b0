"""Packed checkpoints: safetensors files whose tensors are coded without loss, and restored byte for byte."""
