"""From logs to shards: `plan` says what each split gives, `copying` makes a shard of it."""
