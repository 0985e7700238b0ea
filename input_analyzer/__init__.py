"""How fast an input pipeline is, why, what to change, and how many nodes, tasks and CPUs a training needs."""
