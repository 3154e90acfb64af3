"""`make chaos`: uploads through the real stack while it is killed, stopped and cut, and then what must hold of them.

See docs/chaos.md.
"""
