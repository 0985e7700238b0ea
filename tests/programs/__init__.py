"""Programs, models and layers that several tests or benchmarks use."""
