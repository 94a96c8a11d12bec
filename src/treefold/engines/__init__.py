"""Engines carry bytes between hosts: gloo and MPI, which users have, behind one interface."""
