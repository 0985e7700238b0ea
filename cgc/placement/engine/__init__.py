"""What placing a kernel graph and solving a graph of the contest share: slicing floorplans and their search.

The kernels come as curves, the least height by width at a target time. `bands` and `columns` lay them out
along the data flow, `fit` looks for anything that fits, `anneal` changes floorplans, `push` moves the
rectangles of the best one closer together.
"""
