"""The vocabulary that the stage writer, the delta loader and the bootstrap tool share.

Rule of this package: it never imports one of the three. They share only what is defined here — spans, names, markers,
settings, errors, metrics and the ports to the outside world.
"""
