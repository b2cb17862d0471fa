"""Play games and record them."""
