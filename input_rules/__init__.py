"""What can be said of an input function without running it, and how a front end hands one to an analyzer."""
