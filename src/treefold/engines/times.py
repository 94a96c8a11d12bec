"""All constant times of groups, in seconds. All other waits end at the caller's deadline."""

#: How long a rank that stops waits for the words of others, and until its own word is sent.
GRACE_PERIOD_S = 2.0
#: How long closing may take.
CLOSE_S = 1.0
#: After this time in a call, a rank that waits warns, once.
WARN_AFTER_S = 30.0
#: While connecting, the time between two looks: into a store, for a folder, for room to send descriptors.
RETRY_S = 0.02
#: The longest sleep between two looks for messages, over an engine that has to be polled.
POLL_S = 2e-4
