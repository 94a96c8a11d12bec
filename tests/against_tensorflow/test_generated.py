"""SUM and MEAN by TensorFlow's ops and by treefold's, on generated values, compared bit for bit.

Replica r brings 2**r times a small whole number that depends on the position, times a power of two for floats: a wrong
result says whose contribution is lost, doubled or misplaced, and every sum, partial or not, is exact in every dtype.
``why_tensorflow_differs`` names what is left out; each of its answers has a test of its own in the files beside this
one. int8 is left out for 8 replicas, since it has no 2**7.
"""

import dataclasses
import functools
import itertools
import math
import os
import random
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

import treefold

DEFAULT_CASES = 2_000
CASES = {"full": 10 * DEFAULT_CASES}.get(
    os.environ.get("TREEFOLD_CASES", ""), int(os.environ.get("TREEFOLD_CASES", "0").replace("full", "0"))
)
