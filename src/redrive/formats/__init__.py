"""How do dead letters look on the wire, ours and other people's?

Systems that differ only by names are rows of one table (`systems`), read by `conventions`; those that have a shape of
their own have a file: `own`, `onex`, `x_death`, `shovel`. Each answers in the same words: `recognises` (is this record
such a dead letter?), `read` (what does it tell?) and, where redrive writes it too, `write`. `told` asks all of them.

The one rule of the room: reading never raises. What a convention does not tell stays None, what cannot be
read is named in `problems`, and what is not understood is kept. It knows no broker, no store and no clock.
"""
