"""Operations of frameworks that take several ops of CIRH, as functions of an `Emitter` and values."""
