"""The PyTorch front end."""
