"""Search for slicing floorplans, used to place kernel graphs and to solve the ISPD 2020 contest.

A kernel is given as its shape curve, the least height by width at a target time. `packing` lays kernels out
in bands and columns along the data flow, `starts` turns them into initial floorplans, and `anneal` improves
floorplans and finally pushes the rectangles of the best one closer together.
"""
