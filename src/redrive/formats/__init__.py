"""How do dead letters look on the wire, ours and other people's?

One file per convention (`FORMATS.md`). Each answers three questions in the same words: `recognises` (is this
record such a dead letter?), `read` (what does it tell?) and, where redrive writes it too, `write`.

The one rule of the room: reading never raises. What a convention does not tell stays None, what cannot be
read is named in `problems`, and what is not understood is kept. It knows no broker, no store and no clock.
"""
