"""LAIR: loop nests for ops that no kernel of the library matches.

A group of CIRH ops becomes one function of xDSL's own dialects: `linalg.generic` and `linalg.fill` over
tensors, with bodies of `arith`, `math` and `tensor.extract` on scalars.

    dialect     `linalg.generic`, queries about it, and calls for what linalg cannot express
    build       scalars, tensors and loops
    expressions lazy tensors, computed in the bodies of the nests that need them
    from_jaxpr  loop nests from the jaxpr of an op, by a table of JAX primitives
    lower       a group of CIRH ops -> func.func
    passes      `lair-fuse`, `lair-cse`, `lair-dce`
    nest        func.func -> loop nests as plain data: extents, access maps, work of an iteration
    polyhedra   sets of iterations, images of tiles, dependences, counted by islpy
                (`cgc.kernels.nest_cost` computes cycles and memory from them)

Conventions in addition to those of MLIR:
* 64-bit integers are 32-bit ones, as on the device. Unsigned integers are signless; ops determine how they
  are read.
* The loops of a `linalg.generic` run in lexicographic order. A *scan* is one whose result is indexed by a
  loop of the kind "reduction": the running value is a second result without that loop.
* An output map need not cover its tensor: elements that no iteration writes keep their initial value. So
  padding and concatenation are loops that write a part.
* An op that linalg cannot express is a call of a private function (`cgc.lair.dialect`).
"""
