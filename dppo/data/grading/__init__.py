"""Whether two answers mean the same: from text, through values, to a verdict. Runs inside the verifier's workers.

``text`` <- ``tokens``, ``numbers``, ``units``, ``words``, ``names`` <- ``canonical``, ``formula`` <- ``reading``;
``values`` <- ``equality`` <- ``closeness``, ``regions`` <- ``compare``. Nothing here imports torch, and no string of a
model reaches ``eval``, ``sympify`` or sympy's parser of Python expressions.
"""
