"""``treefold average``: the sum or the weighted mean of checkpoints, tensor by tensor, in constant memory."""
