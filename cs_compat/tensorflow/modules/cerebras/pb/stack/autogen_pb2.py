"""When kernels are generated instead of matched. The toolkit always generates those that it lacks."""

AP_DISABLED = 1
AP_ENABLED = 2
