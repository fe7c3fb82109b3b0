"""The built-in calibration set: its sources, and how it is made."""
