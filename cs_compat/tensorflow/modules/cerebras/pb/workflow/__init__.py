"""Messages of the original stack."""
