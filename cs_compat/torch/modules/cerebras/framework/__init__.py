"""Front ends."""
