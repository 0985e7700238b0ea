"""The ISPD 2020 wafer-scale placement contest: its file formats, its score, and a solver for it."""
