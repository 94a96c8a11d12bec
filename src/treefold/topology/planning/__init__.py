"""Which method an all-reduce of one machine gets: trees, rings, hosts, compared by predicted times."""
