"""How ranks find each other: a launcher's environment, a ticket, a store or a communicator becomes a group."""
