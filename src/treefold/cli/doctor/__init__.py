"""``treefold doctor``: what is here, what is slow or missing, and what to do about it.

``looks`` look at one thing each, ``gpus`` at the drivers, and ``command`` prints what they found. No framework is
imported.
"""
