"""All times of groups that are constants, in seconds. Everything else waits for the caller's deadline."""

#: How long a rank that stops waits for the words of others, and for its own word to leave.
GRACE_PERIOD_S = 2.0
#: How long closing may take.
CLOSE_S = 1.0
#: When a rank that waits in a call warns, once.
WARN_AFTER_S = 30.0
#: While connecting, how often a rank looks again: into a store, for a folder, for room to send descriptors.
RETRY_S = 0.02
#: How long a rank sleeps at most before it looks for messages again, over an engine that has to be asked.
POLL_S = 2e-4
