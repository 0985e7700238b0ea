"""Connections over sockets, frames of protocols, and silence of peers."""
