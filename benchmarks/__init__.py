"""How fast is it, against what, in the same run?

`python -m benchmarks` lists the benchmarks, `python -m benchmarks NAME [--quick]` runs one. Each case is one line of
JSON on standard output: `ratio` is ours against a peer measured in the same run, higher is better, `asked` is what
we ask of ourselves. Nothing here ever fails a test: machines differ, ratios tell.
"""
