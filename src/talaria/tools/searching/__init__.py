"""The file search, run as a separate program, so that a pathological pattern blocks nobody and can be killed.

It uses only the standard library: it is started without site-packages.
"""
