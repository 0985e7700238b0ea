"""What the loop of a program takes beside the step."""
