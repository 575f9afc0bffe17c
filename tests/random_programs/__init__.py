"""Random stage-I programs, with random structures to run them on.

A program is drawn as text, so that a failing one can be read and kept as a test. Values are small
integers (or powers of two where they are multiplied up), so that results are exact in every float
type and are compared without tolerance.

A program is written by one object: each file adds to the writer of the file before, from choices over
axes, buffers, expressions and statements to the program.
"""

from .program import Program, programs

__all__ = ["Program", "programs"]
