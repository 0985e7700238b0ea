"""Import names of the original stack, for programs written for it; thin re-exports of the toolkit."""
