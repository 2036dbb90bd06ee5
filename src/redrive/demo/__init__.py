"""A small shop that fails in every way there is, and what redrive makes of it.

`shop` has the handlers and runs in processes of its own; `outside` is the bank and the mail host they talk to;
`traffic` is what customers do; `staff` keeps the shop's processes running; `story` tells what became of each dead
letter, `view` shows it, and `run` puts all of it beside a server.
"""
