"""Batches as other libraries' arrays; each module imports its library when it is first used."""
