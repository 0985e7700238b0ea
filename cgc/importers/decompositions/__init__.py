"""What frameworks have as one operation and CIRH as several ops: functions of an `Emitter` and values."""
