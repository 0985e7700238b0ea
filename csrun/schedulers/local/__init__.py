"""Jobs whose tasks are processes of this machine."""
