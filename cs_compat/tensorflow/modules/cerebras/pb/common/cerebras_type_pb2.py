"""Number formats."""

T_F16 = 1
T_CB16 = 2
