"""Checks of `csrun doctor`: would a run work here?"""
