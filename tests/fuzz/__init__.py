"""Files that somebody has changed on purpose: every format that squeeze reads, mutated and read again.

A format (formats/) makes small valid samples, mutates one, reads it, and says what counts as right. mutations.py
changes bytes and JSON, judging.py tells what came of a case, running.py runs thousands in processes with limits.
"""
