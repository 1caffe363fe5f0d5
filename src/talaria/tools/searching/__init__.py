"""The search of files, run as a program of its own: a pathological pattern can be killed, and blocks nobody.

Only the standard library: it is started without site-packages.
"""
