"""The original's appliance: logs, messages, cluster and storage, for programs of all front ends."""
