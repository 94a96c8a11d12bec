"""Reading a call: the fast path recognises it, or it is validated; and wrapping its results."""
