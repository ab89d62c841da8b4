"""Hosts: trainers whose own training sends one request a group, with their trees untouched."""
