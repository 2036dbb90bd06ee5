"""Letters sent back by a person's word: planned, previewed, run in the open, and gone on with after a crash.

`plan` freezes the list, `options` say how careful to be, `run` carries an operation out, `edit` changes what is sent.
"""
