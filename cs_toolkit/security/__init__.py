"""Security of connections: certificates, TLS, proofs of a secret, and secrets in files."""
