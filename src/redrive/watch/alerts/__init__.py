"""Who is told when something is wrong, when, and how often?

    measured ──► rules ──► incidents ──► alerts ──► notifiers
    (what is)    (too      (once, not    (what is   (mail, chat,
                 much?)    every time)   told)      pager)

Everything up to the alert is made of values: what is measured goes in, what is to be told comes out. It listens and
tells, and never steers.
"""
