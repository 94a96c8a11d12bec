"""Reading a call: recognised as a kind that went well before, or validated; and wrapping its results."""
