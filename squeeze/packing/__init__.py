"""Packed checkpoints: tensors are compressed without loss and restored byte for byte."""
