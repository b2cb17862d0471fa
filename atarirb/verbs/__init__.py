"""What can be done with logs and datasets, one module per verb of the command line."""
